"""Write a GGUF file from a Llama or an EAGLE-3 head, or dequantise a GGUF file.

    python -m tools.to_gguf MODEL_FOLDER OUT.gguf --type F32
    python -m tools.to_gguf HEAD_FOLDER OUT.gguf --target MODEL_FOLDER
    python -m tools.to_gguf QUANTISED.gguf OUT.gguf

A dequantised file has the same metadata and names, with packed tensors in BF16. Models and heads
get the names and values that llama.cpp's converter writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    SpecialVocab,
    TokenType,
    get_tensor_name_map,
)
from gguf.quants import dequantize, quantize

from specbench.methods._eagle import FILES
from specbench.methods.shared.checkpoint import read_tensors
from specbench.models.checkpoints import read_config
from specbench.models.tokenizers import load_tokenizer

_UNPACKED_TYPES = ("F64", "F32", "F16", "BF16", "I8", "I16", "I32", "I64")
_HEAD_PREFIXES = {
    "midlayer.": "model.layers.0.",
    "norm.": "model.norm.",
    "embed_tokens.": "model.embed_tokens.",
}
_HEAD_ONLY_NAMES = {
    "fc.weight": "fc.weight",
    "model.layers.0.hidden_norm.weight": "blk.0.attn_norm_2.weight",
}


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", type=Path, help="the model's folder, for a head")
    parser.add_argument("--type", default="BF16", help="type of the matrices")
    arguments = parser.parse_args()
    if arguments.source.is_file():
        write_dequantised(arguments.source, arguments.out)
    else:
        write_folder(arguments.source, arguments.out, target=arguments.target, kind=arguments.type)


def write_dequantised(file: Path, out: Path) -> None:
    """Write a GGUF file's metadata and tensors, with packed tensors converted to BF16."""
    reader = GGUFReader(file)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name == "general.file_type":
            writer.add_file_type(LlamaFileType.MOSTLY_BF16)
        elif name != "general.architecture" and not name.startswith("GGUF."):
            kind = field.types[0]
            element_kind = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, element_kind)
    for tensor in reader.tensors:
        if tensor.tensor_type.name in _UNPACKED_TYPES:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            weights = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            _add(writer, tensor.name, weights, "BF16")
    _finish(writer)


def write_folder(folder: Path, out: Path, *, target: Path | None = None, kind: str) -> None:
    """Write a Llama, or an EAGLE-3 head for a `target`, in `kind`. Vectors are in float32."""
    config = read_config(folder, str(folder))
    writer = GGUFWriter(out, "eagle3" if target else "llama")
    _add_sizes(writer, config)
    _add_tokens(writer, target or folder, config["vocab_size"])
    if target:
        _add_head(writer, config, read_config(target, str(target)))
    tensors = read_tensors("eagle3", folder, FILES if target else ("model.safetensors",))
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {
        "attn_q.weight": config["num_attention_heads"],
        "attn_k.weight": config["num_key_value_heads"],
    }
    for name, tensor in tensors.items():
        if name == "d2t":
            writer.add_tensor("d2t", tensor.numpy().astype(np.int64) + np.arange(len(tensor)))
        if name in ("d2t", "t2d"):
            continue
        if target:
            name = _name_in_a_llama(name)
        gguf_name = _HEAD_ONLY_NAMES.get(name) or names.get_name(name, try_suffixes=(".weight",))
        if not gguf_name:
            raise SystemExit(f"{folder}: llama.cpp has no name for the tensor {name}.")
        weights = tensor.float().numpy()
        num_heads = heads.get(gguf_name.split(".", 2)[-1])
        if num_heads:
            weights = _rotary_pairs(weights, num_heads)
        _add(writer, gguf_name, weights, kind)
    _finish(writer)


def _name_in_a_llama(name: str) -> str:
    """Return the name that a tensor of a head would have in a Llama."""
    for head_prefix, prefix in _HEAD_PREFIXES.items():
        if name.startswith(head_prefix):
            return prefix + name.removeprefix(head_prefix)
    return name


def _add_sizes(writer: GGUFWriter, config: dict[str, Any]) -> None:
    rope = config.get("rope_parameters") or config
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(head_dim)
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokens(writer: GGUFWriter, folder: Path, size: int) -> None:
    """Add the tokenizer of a folder, with GPT-2's pre-tokenizer.

    The model's own pre-tokenizer is not needed, since prompts are sent as tokens.
    """
    tokenizer = load_tokenizer(folder)
    words = {number: word for word, number in tokenizer.get_vocab().items()}
    kinds = dict.fromkeys(words, TokenType.NORMAL)
    kinds |= dict.fromkeys(tokenizer.all_special_ids, TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([words.get(number, f"[PAD{number}]") for number in range(size)])
    writer.add_token_types([kinds.get(number, TokenType.UNUSED) for number in range(size)])
    SpecialVocab(folder, load_merges=True).add_to_gguf(writer, quiet=True)


def _add_head(writer: GGUFWriter, config: dict[str, Any], target: dict[str, Any]) -> None:
    num = target["num_hidden_layers"]
    layers = config.get("eagle_aux_hidden_state_layer_ids") or [2, num // 2, num - 3]
    writer.add_array("eagle3.target_layers", layers)
    writer.add_uint32("eagle3.target_hidden_size", target["hidden_size"])
    writer.add_bool("eagle3.norm_before_residual", config.get("norm_before_residual", False))


def _rotary_pairs(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """Turn the two rotary halves into neighbouring pairs, as llama.cpp's converter does."""
    half_head_dim = weights.shape[0] // num_heads // 2
    halves = weights.reshape(num_heads, 2, half_head_dim, -1)
    return halves.swapaxes(1, 2).reshape(weights.shape)


def _add(writer: GGUFWriter, name: str, weights: np.ndarray, kind: str) -> None:
    """Add a tensor in `kind`, or in float32 if it is a vector."""
    stored_type = GGMLQuantizationType["F32" if weights.ndim == 1 else kind]
    packed = quantize(np.ascontiguousarray(weights), stored_type)
    writer.add_tensor(name, packed, raw_dtype=stored_type)


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
