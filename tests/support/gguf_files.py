"""Small GGUF files as llama.cpp's converter writes them, with queries and keys permuted."""

import re
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import dequantize, quantize
from tokenizers import pre_tokenizers
from transformers import LlamaForCausalLM

from tests.support.checkpoint import NUM_TOKENS, SPECIAL
from tests.support.models import random_llama

TEMPLATE = "{% for message in messages %}{{ '<s>' + message['content'] + '</s>' }}{% endfor %}"
_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def write_gguf(
    path: Path,
    kind: str = "Q4_1",
    architecture: str = "llama",
    *,
    scaling: str = "none",
    factors: bool = False,
    lacking: str = "",
) -> LlamaForCausalLM:
    """Write a random Llama with matrices of type `kind`; return it as the file says it is.

    `scaling` is the type of its rotary embedding's, which may also have `factors`.
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
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"])
    writer.add_token_types([3] * len(SPECIAL) + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == lacking:
                continue
            values = parameter.numpy()
            if parameter.ndim == 1:
                writer.add_tensor(_name(name), values)
                continue
            heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
            permuted = name[-13:-12] in heads and name.endswith("_proj.weight")
            stored = _permuted(values, heads[name[-13]]) if permuted else values
            packed = quantize(stored, quantisation)
            writer.add_tensor(_name(name), packed, raw_dtype=quantisation)
            read = dequantize(packed, quantisation).reshape(stored.shape)
            read = _unpermuted(read, heads[name[-13]]) if permuted else read
            parameter.copy_(torch.from_numpy(read.copy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    part = name[layer.end() if layer else 0 :].removesuffix(".weight")
    return f"blk.{layer[1]}.{_NAMES[part]}.weight" if layer else f"{_NAMES[part]}.weight"


def _permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rotary halves as neighbours, as `permute` in convert_hf_to_gguf.py."""
    rows = values.shape[0] // heads // 2
    return values.reshape(heads, 2, rows, -1).swapaxes(1, 2).reshape(values.shape)


def _unpermuted(values: np.ndarray, heads: int) -> np.ndarray:
    rows = values.shape[0] // heads // 2
    return values.reshape(heads, rows, 2, -1).swapaxes(1, 2).reshape(values.shape)
