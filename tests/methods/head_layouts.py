"""Random EAGLE-3 heads, written in every published layout."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict

from specbench.engine.target import Target
from tests.methods.checkpoints import IDS, Tensors, layer_of, llama_config, random, write

LAYER_IDS = (1, 2, 4)


@dataclass(frozen=True)
class Layout:
    """A published layout: `prefixes` of its keys, the places of its fields, and its switches.

    `flat` fields stand at the top of config.json, `nested` ones in the object `section`, and the
    layer's own sizes in `layer_section`, if these are named. Files have at most `shard_bytes`, if
    given.
    """

    name: str
    flat: Mapping[str, Any] = field(default_factory=dict)
    section: str = ""
    nested: Mapping[str, Any] = field(default_factory=dict)
    layer_section: str = ""
    prefixes: tuple[tuple[str, str], ...] = (("layers.0.", "midlayer."),)
    num_layers: int = 1
    has_embedding: bool = False
    has_vocabulary: bool = True
    has_projection: bool = True
    has_head_norms: bool = False
    has_bias: bool = False
    shard_bytes: int = 0
    file: str = "model.safetensors"

    @property
    def switches(self) -> dict[str, Any]:
        return {**self.flat, **self.nested}


def speculators(layer: str = "llama", **changes: Any) -> Layout:
    """The layout of speculators 0.9, with the fields that its config class writes."""
    layers = changes.pop("num_layers", 1)
    flat = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "tie_word_embeddings": False,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "target_hidden_size": None,
        IDS: list(LAYER_IDS),
        **changes,
    }
    return Layout(
        "speculators", flat, layer_section="transformer_layer_config", prefixes=(),
        nested={"model_type": layer}, num_layers=layers, has_head_norms=layer == "qwen3",
    )  # fmt: skip


MODELOPT = {
    IDS: [1, 3, 4],  # the formula's layers, by their outputs
    "use_aux_hidden_state": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "use_input_layernorm_in_first_layer": True,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 1,
}
FLAT = {IDS: list(LAYER_IDS)}
LAYOUTS = {
    "SafeAILab": Layout("SafeAILab", FLAT, file="pytorch_model.bin"),
    "SafeAILab in shards": Layout("SafeAILab", FLAT, shard_bytes=14_000),
    "pickled shards": Layout("SafeAILab", FLAT, shard_bytes=30_000, file="pytorch_model.bin"),
    "SpecForge": Layout(
        "SafeAILab", has_embedding=True, section="eagle_config", nested={IDS: [1, 3, 4]}
    ),
    "SpecForge 3.1": Layout("SafeAILab", {**FLAT, "fc_norm": True, "norm_output": True}),
    "AngelSlim": Layout(
        "SafeAILab", {**FLAT, "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama"}
    ),
    "speculators": speculators(),
    "speculators, residual after the norm": speculators(norm_before_residual=True),
    "speculators, qwen3": speculators("qwen3", norm_before_fc=True, norm_before_residual=True),
    "speculators, 3.1": speculators("qwen3", fc_norm=True, norm_output=True),
    "speculators, all tokens": speculators(num_layers=2),
    "speculators, two qwen3 layers": speculators("qwen3", num_layers=2, norm_output=True),
    "ModelOpt": Layout(
        "ModelOpt", section="eagle_config", nested=MODELOPT, prefixes=(), has_vocabulary=False
    ),
    "ModelOpt, three layers": Layout(
        "ModelOpt", section="eagle_config", nested=MODELOPT, prefixes=(), has_vocabulary=False,
        num_layers=3,
    ),
    "ModelOpt, norm_before_fc": Layout(
        "ModelOpt", section="eagle_config", nested={**MODELOPT, "norm_before_fc": True},
        prefixes=(), has_vocabulary=False,
    ),
    "ModelOpt, the target's projection": Layout(
        "ModelOpt", section="eagle_config", nested=MODELOPT, prefixes=(), has_vocabulary=False,
        has_projection=False,
    ),
    "AutoModel with biases": Layout(
        "AutoModel or vLLM", {**FLAT, "attention_bias": True, "mlp_bias": True},
        has_embedding=True, has_bias=True,
        prefixes=tuple((key, f"model.{key}") for key in ("layers.", "fc", "norm.", "embed_")),
    ),
}  # fmt: skip
"""Every EAGLE-3 layout that is read, by the name of its trainer."""


def make_head(target: Target, layout: Layout, seed: int = 0) -> Tensors:
    """Random tensors of a head under their internal names."""
    hidden, vocab = target.config.hidden_size, target.vocab_size
    kv_heads, count = target.config.num_key_value_heads, len(LAYER_IDS)
    dim = hidden // target.config.num_attention_heads
    tensors: Tensors = {}
    for i in range(layout.num_layers):
        layer = layer_of(target, hidden if i else 2 * hidden, kv_heads, bias=layout.has_bias)
        if layout.has_bias:
            layer |= {f"mlp.{part}_proj.bias": random(size, seed=size)
                      for part, size in (("gate", 64), ("up", 64), ("down", hidden))}  # fmt: skip
        layer["input_layernorm.weight"] = 1 + random(hidden, seed=31)
        if layout.has_head_norms:
            layer |= {f"self_attn.{n}_norm.weight": 1 + random(dim, seed=40 + i) for n in "qk"}
        tensors |= {f"layers.{i}.{key}": value * (1 + i / 8) for key, value in layer.items()}
    tensors["layers.0.hidden_norm.weight"] = 1 + random(hidden, seed=32)
    tensors["norm.weight"] = 1 + random(hidden, seed=33)
    tensors["fc.weight"] = random(hidden, count * hidden, seed=34 + seed)
    if layout.switches.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": 1 + random(hidden, seed=50 + i) for i in range(count)}
    if layout.switches.get("norm_before_fc"):
        tensors["input_norm.weight"] = 1 + random(count * hidden, seed=60)
    if layout.has_embedding:
        tensors["embed_tokens.weight"] = random(vocab, hidden, seed=61)
    if layout.has_vocabulary:
        kept = torch.arange(0, vocab, 2)
        tensors["d2t"] = kept - torch.arange(len(kept))
        tensors["t2d"] = torch.isin(torch.arange(vocab), kept)
    if layout.has_projection:
        size = len(tensors["d2t"]) if layout.has_vocabulary else vocab
        tensors["lm_head.weight"] = 4 * random(size, hidden, seed=62)
    return tensors


def write_layout(target: Target, layout: Layout, tensors: Tensors, folder: Path) -> Path:
    """Write a head in a layout, with the config that the layout's trainers write."""
    sizes = {
        **llama_config(target, target.config.num_key_value_heads),
        "num_hidden_layers": layout.num_layers,
        "rope_theta": 5000.0,
    }
    sizes.pop("architectures")
    size = len(tensors.get("lm_head.weight", range(target.vocab_size)))
    flat = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": size, **layout.flat}
    if layout.layer_section:
        rope = {"rope_type": "default", "rope_theta": sizes.pop("rope_theta")}
        for default in ("rms_norm_eps", "hidden_act"):  # the package omits these
            sizes.pop(default)
        dim = sizes["hidden_size"] // sizes["num_attention_heads"]
        nested = {**sizes, "head_dim": dim, "rope_parameters": rope, **layout.nested}
        config = {**flat, layout.layer_section: nested}
    else:
        config = {**sizes, **flat, **({layout.section: layout.nested} if layout.section else {})}
    named = {published(key, layout): value.clone() for key, value in tensors.items()}
    write(folder, layout.file, named, config)
    if layout.shard_bytes:
        (folder / layout.file).unlink()
        is_safe = layout.file.endswith(".safetensors")
        save_torch_state_dict(
            named, folder, max_shard_size=layout.shard_bytes, safe_serialization=is_safe
        )
    return folder


def published(key: str, layout: Layout) -> str:
    """The name of a tensor in the layout."""
    for internal, prefix in layout.prefixes:
        if key.startswith(internal):
            return prefix + key.removeprefix(internal)
    return key
