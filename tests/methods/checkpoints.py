"""Random head checkpoints in the published formats, for any Llama-like target."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.engine.target import Target

Tensors = dict[str, Tensor]
IDS = "eagle_aux_hidden_state_layer_ids"
"""The field of a config that names the target layers of EAGLE-3's features."""


def random(*shape: int, seed: int) -> Tensor:
    """A random weight whose products are as large as its inputs."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(*shape, generator=generator)
    return (weight / shape[-1] ** 0.5 if len(shape) > 1 else 0.1 * weight).half()


def write(folder: Path, name: str, tensors: Tensors, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith(".safetensors"):
        save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def medusa(target: Target, folder: Path, heads: int = 5, layers: int = 1) -> Path:
    """Medusa heads, with a wrong number of heads in the config as in published ones."""
    hidden, vocab = target.config.hidden_size, target.vocab_size
    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = random(hidden, hidden, seed=head)
            tensors[f"{head}.{layer}.linear.bias"] = random(hidden, seed=head)
        tensors[f"{head}.{layers}.weight"] = random(vocab, hidden, seed=50 + head)
    return write(folder, "medusa_lm_head.pt", tensors, {"medusa_num_heads": 2})


def hydra(target: Target, folder: Path, arch: str = "mlp", heads: int = 4, layers: int = 1) -> Path:
    hidden, vocab = target.config.hidden_size, target.vocab_size
    first, stride, projection = (1, 2, ".1") if arch == "prefix-mlp" else (0, 1, "")
    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            name = f"hydra_mlp.{head}.{first + layer * stride}"
            size = hidden if layer else (head + 2) * hidden
            for seed, part in enumerate(["linear"] if layer else ["linear", "res_connection"]):
                tensors[f"{name}.{part}.weight"] = random(hidden, size, seed=10 * head + seed)
                tensors[f"{name}.{part}.bias"] = random(hidden, seed=10 * head + seed)
        tensors[f"hydra_lm_head.{head}{projection}.weight"] = random(vocab, hidden, seed=90 + head)
        tensors[f"hydra_lm_head.{head}{projection}.bias"] = random(vocab, seed=90 + head)
    tensors["input_embed_fn.weight"] = random(vocab, hidden, seed=1)
    if arch == "prefix-mlp":
        prefix = "prefix_embeding_layer"
        shared = layer_of(target, hidden, target.config.num_key_value_heads, bias=False)
        tensors |= {f"{prefix}.layers.0.{key}": weight for key, weight in shared.items()}
        tensors[f"{prefix}.layers.0.input_layernorm.weight"] = 1 + random(hidden, seed=3)
        tensors[f"{prefix}.norm.weight"] = 1 + random(hidden, seed=4)
        tensors[f"{prefix}.embed_tokens.weight"] = random(vocab, hidden, seed=1)
    config = {"hydra_num_heads": heads, "hydra_head_arch": arch, "grounded_heads": True}
    return write(folder, "hydra_lm_head.pt", tensors, config)


def eagle(
    target: Target,
    folder: Path,
    *,
    fc_bias: bool = True,
    qkv_bias: bool = False,
    kv_heads: int | None = None,
    name: str = "pytorch_model.bin",
    has_embedding: bool = True,
    draft_vocab: int | None = None,
    **changes: Any,
) -> Path:
    """An EAGLE head. A config without the key `bias` means that `fc` has a bias."""
    hidden = target.config.hidden_size
    kv_heads = kv_heads or target.config.num_key_value_heads
    layer = layer_of(target, hidden, kv_heads, bias=qkv_bias)
    tensors = {f"layers.0.{key}": weight for key, weight in layer.items()}
    tensors["fc.weight"] = random(hidden, 2 * hidden, seed=11)
    if fc_bias:
        tensors["fc.bias"] = random(hidden, seed=12)
    if has_embedding:
        tensors["embed_tokens.weight"] = target.model.get_input_embeddings().weight.clone().half()
    if draft_vocab:
        tensors |= vocabulary(target.vocab_size, draft_vocab)
    config = llama_config(target, kv_heads, **changes)
    return write(folder, name, tensors, config if fc_bias else {**config, "bias": False})


def vocabulary(vocab: int, size: int) -> dict[str, torch.Tensor]:
    """The maps between the target's tokens and a draft vocabulary of `size` tokens."""
    order = torch.randperm(vocab, generator=torch.Generator().manual_seed(0))
    kept = order[:size].sort().values
    return {"d2t": kept - torch.arange(size), "t2d": torch.isin(torch.arange(vocab), kept)}


def eagle3(target: Target, folder: Path, draft_vocab: int | None = None, **changes: Any) -> Path:
    """An EAGLE-3 head over a draft vocabulary, by default two thirds of the target's.

    Its config names the first three layers, or all if there are fewer. If that field is None, the
    formula chooses the layers.
    """
    hidden, vocab = target.config.hidden_size, target.vocab_size
    draft_vocab = draft_vocab or vocab - vocab // 3
    layers = changes.setdefault(IDS, list(range(min(3, len(target.layers))))) or range(3)
    kv_heads = target.config.num_key_value_heads
    tensors = {
        f"midlayer.{key}": weight
        for key, weight in layer_of(target, 2 * hidden, kv_heads, bias=False).items()
    }
    for seed, key in enumerate(("midlayer.hidden_norm", "midlayer.input_layernorm", "norm")):
        tensors[f"{key}.weight"] = 1 + random(hidden, seed=seed)
    tensors["fc.weight"] = random(hidden, len(layers) * hidden, seed=11)
    tensors["lm_head.weight"] = random(draft_vocab, hidden, seed=12)
    tensors |= vocabulary(vocab, draft_vocab)
    config = llama_config(target, kv_heads, draft_vocab_size=draft_vocab, **changes)
    return write(folder, "pytorch_model.bin", tensors, config)


def peagle(target: Target, folder: Path, **changes: Any) -> Path:
    """A P-EAGLE head of two layers, as vLLM loads it."""
    hidden, kv_heads = target.config.hidden_size, target.config.num_key_value_heads
    layers = list(range(min(3, len(target.layers))))
    config = {"parallel_drafting": True, "ptd_token_id": 3, IDS: layers, **changes}
    folder = eagle3(target, folder, **config)
    tensors = torch.load(folder / "pytorch_model.bin")
    second = layer_of(target, hidden, kv_heads, bias=False)
    second["input_layernorm.weight"] = 1 + random(hidden, seed=13)
    tensors |= {f"layers.1.{key}": 1.25 * weight for key, weight in second.items()}
    tensors["mask_hidden"] = 0.3 * random(1, 1, len(layers) * hidden, seed=14).float()
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def dflash(target: Target, folder: Path, block_size: int = 5, **changes: Any) -> Path:
    """A DFlash head of two layers, as z-lab publishes them."""
    hidden, kv_heads = target.config.hidden_size, target.config.num_key_value_heads
    outputs = list(range(max(min(3, len(target.layers) - 1), 1)))
    tensors: Tensors = {}
    for i in range(2):
        layer = layer_of(target, hidden, kv_heads, bias=False)
        dim = layer["self_attn.k_proj.weight"].shape[0] // kv_heads
        layer |= {f"self_attn.{n}_norm.weight": 1 + random(dim, seed=15 + i) for n in "qk"}
        layer["input_layernorm.weight"] = 1 + random(hidden, seed=17 + i)
        tensors |= {f"layers.{i}.{key}": (1 + i / 4) * weight for key, weight in layer.items()}
    for seed, key in enumerate(("hidden_norm", "norm")):
        tensors[f"{key}.weight"] = 1 + random(hidden, seed=20 + seed)
    tensors["fc.weight"] = random(hidden, len(outputs) * hidden, seed=22)
    config = {
        **llama_config(target, kv_heads),
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "head_dim": dim,
        "rope_theta": 5000.0,
        "num_hidden_layers": 2,
        "num_target_layers": len(target.layers),
        "layer_types": ["full_attention"] * 2,
        "use_sliding_window": False,
        "block_size": block_size,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": outputs},
        **changes,
    }
    return write(folder, "model.safetensors", tensors, config)


def mtp(target: Target, folder: Path, **changes: Any) -> Path:
    """A prediction layer like the target's own layers, among other tensors of its checkpoint."""
    hidden, kv_heads = target.config.hidden_size, target.config.num_key_value_heads
    prefix = f"model.layers.{len(target.layers)}."
    last_layer: Any = target.layers[-1]
    layer = layer_of(target, hidden, kv_heads, bias=last_layer.self_attn.q_proj.bias is not None)
    for seed, name in enumerate(("enorm", "hnorm", "shared_head.norm", "input_layernorm")):
        layer[f"{name}.weight"] = 1 + random(hidden, seed=40 + seed)
    layer["eh_proj.weight"] = random(hidden, 2 * hidden, seed=44)
    tensors = {prefix + key: weight for key, weight in layer.items()}
    tensors["model.norm.weight"] = torch.zeros(hidden)
    config = {**llama_config(target, kv_heads), "num_nextn_predict_layers": 1, **changes}
    return write(folder, "model.safetensors", tensors, config)


def layer_of(target: Target, size: int, kv_heads: int, *, bias: bool) -> Tensors:
    """The weights that the formats' decoder layers share."""
    hidden, inner = target.config.hidden_size, target.config.intermediate_size
    heads = target.config.num_attention_heads
    dim = getattr(target.config, "head_dim", None) or hidden // heads
    rows = {"q_proj": heads * dim, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}
    tensors = {
        f"self_attn.{name}.weight": random(count, size, seed=seed)
        for seed, (name, count) in enumerate(rows.items())
    }
    if bias:
        tensors |= {f"self_attn.{n}.bias": random(c, seed=c) for n, c in rows.items()}
    return tensors | {
        "self_attn.o_proj.weight": random(hidden, heads * dim, seed=5),
        "mlp.gate_proj.weight": random(inner, hidden, seed=6),
        "mlp.up_proj.weight": random(inner, hidden, seed=7),
        "mlp.down_proj.weight": random(hidden, inner, seed=8),
        "post_attention_layernorm.weight": 1 + random(hidden, seed=9),
    }


def llama_config(target: Target, kv_heads: int, **changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": target.config.hidden_size,
        "intermediate_size": target.config.intermediate_size,
        "num_attention_heads": target.config.num_attention_heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": target.vocab_size,
        **changes,
    }


_MAKERS: tuple[Callable[..., Path], ...] = (medusa, hydra, eagle, eagle3, peagle, dflash, mtp)
MAKERS = {maker.__name__: maker for maker in _MAKERS}
"""The makers of checkpoints by model-card key, each called with a target and a folder."""
