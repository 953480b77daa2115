"""Small GGUF files as llama.cpp's converter writes them, with queries and keys permuted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFValueType,
    GGUFWriter,
    RopeScalingType,
    get_tensor_name_map,
)
from gguf.quants import dequantize, quantize
from tokenizers import pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedModel

from tests.support.checkpoint import NUM_TOKENS, SPECIAL
from tests.support.models import random_llama

ARCHITECTURES = {name: architecture for architecture, name in MODEL_ARCH_NAMES.items()}
_KINDS = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", list: "ARRAY"}
TEMPLATE = "{% for message in messages %}{{ '<s>' + message['content'] + '</s>' }}{% endfor %}"


def write_gguf(
    path: Path,
    kind: str = "Q4_1",
    architecture: str = "llama",
    *,
    scaling: str = "none",
    factors: bool = False,
    lacking: str = "",
) -> LlamaForCausalLM:
    """Write a random Llama with matrices of type `kind`. Return it with the weights of the file.

    `scaling` is how the rotary embedding is scaled. With `factors`, the file has factors for it.
    """
    model = random_llama(2, vocab_size=NUM_TOKENS + 1, hidden_size=64, head_dim=16).float()
    config, quantisation = model.config, GGMLQuantizationType[kind]
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_scaling_type(RopeScalingType(scaling))
    if factors:
        writer.add_tensor("rope_freqs.weight", np.ones(config.head_dim // 2, np.float32))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(NUM_TOKENS + 1)
    _add_tokenizer(writer)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == lacking:
                continue
            values = parameter.numpy()
            stored = names.get_name(name, try_suffixes=(".weight",)) or name
            if parameter.ndim == 1:
                writer.add_tensor(stored, values)
                continue
            order = np.arange(len(values))
            if num_heads := heads.get(name.split(".")[-2]):  # rotary halves become neighbours
                order = order.reshape(num_heads, 2, -1).swapaxes(1, 2).flatten()
            packed = quantize(values[order], quantisation)
            writer.add_tensor(stored, packed, raw_dtype=quantisation)
            values[order] = dequantize(packed, quantisation).reshape(values.shape)
    _finish(writer)
    return model


def _add_tokenizer(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"])
    writer.add_token_types([3] * len(SPECIAL) + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SHIFTED = {"gemma2", "gemma3", "nemotron"}
"""Architectures whose norms are stored with one added."""
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
"""GPT-2's matrices, which files store like those of other models."""


def write_model(
    path: Path,
    model: PreTrainedModel,
    metadata: Mapping[str, int | float | str | list[bool] | None],
) -> None:
    """Write a model of any architecture as llama.cpp's converter does, in float32.

    `metadata` replaces or adds keys of the architecture. A key that is None is left out.
    """
    config = model.config
    architecture = config.model_type.removesuffix("_text")
    writer = GGUFWriter(path, architecture)
    keys: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
    }
    for key, setting in {**keys, **metadata}.items():
        if setting is None:
            continue
        kind = _KINDS[type(setting)]
        element = GGUFValueType.BOOL if kind == "ARRAY" else None
        writer.add_key_value(f"{architecture}.{key}", setting, GGUFValueType[kind], element)
    _add_tokenizer(writer)
    names = get_tensor_name_map(ARCHITECTURES[architecture], config.num_hidden_layers)
    heads = {
        "q_proj": config.num_attention_heads,
        "k_proj": getattr(config, "num_key_value_heads", 0),
    }
    for name, parameter in model.named_parameters():
        weights = parameter.detach().float().numpy()
        if architecture in SHIFTED and name.endswith("norm.weight"):
            weights = weights + 1
        if architecture == "gpt2" and name.endswith(TRANSPOSED):
            weights = np.ascontiguousarray(weights.T)
        if architecture == "llama" and (num_heads := heads.get(name.split(".")[-2])):
            pairs = weights.reshape(num_heads, 2, -1, *weights.shape[1:])
            weights = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weights.shape)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored, f"{architecture} has no name for {name}"
        writer.add_tensor(stored, weights)
    _finish(writer)
