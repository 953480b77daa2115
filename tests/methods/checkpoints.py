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
    """A random weight [outputs, inputs] whose products are as large as its inputs.

    With one size, it is a vector of small numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(*shape, generator=generator)
    if len(shape) == 1:
        return (0.1 * normal).half()
    # A product sums over shape[-1] inputs, so its variance grows by this factor.
    return (normal / shape[-1] ** 0.5).half()


def norm_weight(size: int, seed: int) -> Tensor:
    """The weight [size] of a norm: numbers around 1."""
    return 1 + random(size, seed=seed)


def linear(name: str, *, outputs: int, inputs: int, seed: int) -> Tensors:
    """The weight [outputs, inputs] and the bias [outputs] of a linear layer."""
    return {
        f"{name}.weight": random(outputs, inputs, seed=seed),
        f"{name}.bias": random(outputs, seed=seed),
    }


def below(prefix: str, tensors: Tensors, scale: float = 1.0) -> Tensors:
    """The tensors times `scale`, under names that begin with the prefix and a dot."""
    return {f"{prefix}.{name}": scale * tensor for name, tensor in tensors.items()}


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
    tensors: Tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors |= linear(f"{head}.{layer}.linear", outputs=hidden, inputs=hidden, seed=head)
        tensors[f"{head}.{layers}.weight"] = random(vocab, hidden, seed=50 + head)
    return write(folder, "medusa_lm_head.pt", tensors, config={"medusa_num_heads": 2})


def hydra(target: Target, folder: Path, arch: str = "mlp", heads: int = 4, layers: int = 1) -> Path:
    """Hydra heads of `layers` blocks. With `prefix-mlp`, a decoder layer comes before them."""
    hidden, vocab = target.config.hidden_size, target.vocab_size
    has_prefix = arch == "prefix-mlp"
    tensors: Tensors = {}
    for head in range(heads):
        for i in range(layers):
            block = f"hydra_mlp.{head}.{1 + 2 * i if has_prefix else i}"
            # The first block reads the hidden state and the embeddings of head + 1 tokens.
            inputs = (head + 2) * hidden if i == 0 else hidden
            tensors |= linear(f"{block}.linear", outputs=hidden, inputs=inputs, seed=10 * head)
            if i == 0:
                tensors |= linear(
                    f"{block}.res_connection", outputs=hidden, inputs=inputs, seed=10 * head + 1
                )
        projection = f"hydra_lm_head.{head}.1" if has_prefix else f"hydra_lm_head.{head}"
        tensors |= linear(projection, outputs=vocab, inputs=hidden, seed=90 + head)
    tensors["input_embed_fn.weight"] = random(vocab, hidden, seed=1)
    if has_prefix:
        kv_heads = target.config.num_key_value_heads
        layer = layer_of(target, size=hidden, kv_heads=kv_heads, bias=False)
        prefix_tensors = {
            **below("layers.0", layer),
            "layers.0.input_layernorm.weight": norm_weight(hidden, seed=3),
            "norm.weight": norm_weight(hidden, seed=4),
            "embed_tokens.weight": random(vocab, hidden, seed=1),
        }
        tensors |= below("prefix_embeding_layer", prefix_tensors)  # the spelling of the format
    config = {"hydra_num_heads": heads, "hydra_head_arch": arch, "grounded_heads": True}
    return write(folder, "hydra_lm_head.pt", tensors, config=config)


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
    layer = layer_of(target, size=hidden, kv_heads=kv_heads, bias=qkv_bias)
    tensors = below("layers.0", layer)
    tensors["fc.weight"] = random(hidden, 2 * hidden, seed=11)
    if fc_bias:
        tensors["fc.bias"] = random(hidden, seed=12)
    if has_embedding:
        embedding = target.model.get_input_embeddings().weight
        tensors["embed_tokens.weight"] = embedding.clone().half()
    if draft_vocab:
        tensors |= vocabulary(target.vocab_size, draft_vocab)
    config = llama_config(target, kv_heads, **changes)
    if not fc_bias:
        config["bias"] = False
    return write(folder, name, tensors, config=config)


def vocabulary(vocab: int, size: int) -> Tensors:
    """The maps between the target's tokens and a draft vocabulary of `size` tokens."""
    generator = torch.Generator().manual_seed(0)
    shuffled_ids = torch.randperm(vocab, generator=generator)
    draft_ids = shuffled_ids[:size].sort().values  # [size], ids of the target
    return {
        "d2t": draft_ids - torch.arange(size),  # token i is the target's token i + d2t[i]
        "t2d": torch.isin(torch.arange(vocab), draft_ids),  # [vocab]
    }


def first_layers(target: Target) -> list[int]:
    """The numbers of the first three layers, or of all if there are fewer."""
    return list(range(min(3, len(target.layers))))


def eagle3(target: Target, folder: Path, draft_vocab: int | None = None, **changes: Any) -> Path:
    """An EAGLE-3 head over a draft vocabulary, by default two thirds of the target's.

    Its config names the first three layers, or all if there are fewer. If that field is None, the
    formula chooses the layers.
    """
    hidden, vocab = target.config.hidden_size, target.vocab_size
    draft_vocab = draft_vocab or vocab - vocab // 3
    layers = changes.setdefault(IDS, first_layers(target))
    num_layers = len(layers) if layers else 3  # the formula chooses three
    kv_heads = target.config.num_key_value_heads
    layer = layer_of(target, size=2 * hidden, kv_heads=kv_heads, bias=False)
    tensors = {
        **below("midlayer", layer),
        "midlayer.hidden_norm.weight": norm_weight(hidden, seed=0),
        "midlayer.input_layernorm.weight": norm_weight(hidden, seed=1),
        "norm.weight": norm_weight(hidden, seed=2),
        "fc.weight": random(hidden, num_layers * hidden, seed=11),
        "lm_head.weight": random(draft_vocab, hidden, seed=12),
        **vocabulary(vocab, draft_vocab),
    }
    config = llama_config(target, kv_heads, draft_vocab_size=draft_vocab, **changes)
    return write(folder, "pytorch_model.bin", tensors, config=config)


def peagle(target: Target, folder: Path, **changes: Any) -> Path:
    """A P-EAGLE head of two layers, as vLLM loads it."""
    hidden, kv_heads = target.config.hidden_size, target.config.num_key_value_heads
    layers = first_layers(target)
    fields = {"parallel_drafting": True, "ptd_token_id": 3, IDS: layers, **changes}
    eagle3(target, folder, **fields)
    path = folder / "pytorch_model.bin"
    tensors = torch.load(path)
    second_layer = layer_of(target, size=hidden, kv_heads=kv_heads, bias=False)
    second_layer["input_layernorm.weight"] = norm_weight(hidden, seed=13)
    tensors |= below("layers.1", second_layer, scale=1.25)
    tensors["mask_hidden"] = 0.3 * random(1, 1, len(layers) * hidden, seed=14).float()
    torch.save(tensors, path)
    return folder


def dflash(target: Target, folder: Path, block_size: int = 5, **changes: Any) -> Path:
    """A DFlash head of two layers, as z-lab publishes them."""
    hidden, kv_heads = target.config.hidden_size, target.config.num_key_value_heads
    head_dim = head_dim_of(target)
    # The first three layers except the target's last one, but at least the first layer.
    outputs = first_layers(target)[: len(target.layers) - 1] or [0]
    tensors: Tensors = {}
    for i in range(2):
        layer = {
            **layer_of(target, size=hidden, kv_heads=kv_heads, bias=False),
            "self_attn.q_norm.weight": norm_weight(head_dim, seed=15 + i),
            "self_attn.k_norm.weight": norm_weight(head_dim, seed=15 + i),
            "input_layernorm.weight": norm_weight(hidden, seed=17 + i),
        }
        tensors |= below(f"layers.{i}", layer, scale=1 + i / 4)
    tensors |= {
        "hidden_norm.weight": norm_weight(hidden, seed=20),
        "norm.weight": norm_weight(hidden, seed=21),
        "fc.weight": random(hidden, len(outputs) * hidden, seed=22),
    }
    config = {
        **llama_config(target, kv_heads),
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "head_dim": head_dim,
        "rope_theta": 5000.0,
        "num_hidden_layers": 2,
        "num_target_layers": len(target.layers),
        "layer_types": ["full_attention"] * 2,
        "use_sliding_window": False,
        "block_size": block_size,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": outputs},
        **changes,
    }
    return write(folder, "model.safetensors", tensors, config=config)


def mtp(target: Target, folder: Path, **changes: Any) -> Path:
    """A prediction layer like the target's own layers, among other tensors of its checkpoint."""
    hidden, kv_heads = target.config.hidden_size, target.config.num_key_value_heads
    last_layer: Any = target.layers[-1]
    has_bias = last_layer.self_attn.q_proj.bias is not None
    layer = {
        **layer_of(target, size=hidden, kv_heads=kv_heads, bias=has_bias),
        "enorm.weight": norm_weight(hidden, seed=40),
        "hnorm.weight": norm_weight(hidden, seed=41),
        "shared_head.norm.weight": norm_weight(hidden, seed=42),
        "input_layernorm.weight": norm_weight(hidden, seed=43),
        "eh_proj.weight": random(hidden, 2 * hidden, seed=44),
    }
    tensors = below(f"model.layers.{len(target.layers)}", layer)
    tensors["model.norm.weight"] = torch.zeros(hidden)
    config = {**llama_config(target, kv_heads), "num_nextn_predict_layers": 1, **changes}
    return write(folder, "model.safetensors", tensors, config=config)


def head_dim_of(target: Target) -> int:
    """The size of an attention head, which some configs leave out."""
    config = target.config
    head_dim = getattr(config, "head_dim", None)
    return int(head_dim or config.hidden_size // config.num_attention_heads)


def layer_of(target: Target, size: int, kv_heads: int, *, bias: bool) -> Tensors:
    """The weights that the formats' decoder layers share. Attention reads `size` numbers."""
    hidden, inner = target.config.hidden_size, target.config.intermediate_size
    head_dim = head_dim_of(target)
    num_queries = target.config.num_attention_heads * head_dim
    num_keys = kv_heads * head_dim
    outputs_of = {"q_proj": num_queries, "k_proj": num_keys, "v_proj": num_keys}
    tensors = {
        f"self_attn.{projection}.weight": random(outputs, size, seed=seed)
        for seed, (projection, outputs) in enumerate(outputs_of.items())
    }
    if bias:
        tensors |= {
            f"self_attn.{projection}.bias": random(outputs, seed=outputs)
            for projection, outputs in outputs_of.items()
        }
    return tensors | {
        "self_attn.o_proj.weight": random(hidden, num_queries, seed=5),
        "mlp.gate_proj.weight": random(inner, hidden, seed=6),
        "mlp.up_proj.weight": random(inner, hidden, seed=7),
        "mlp.down_proj.weight": random(hidden, inner, seed=8),
        "post_attention_layernorm.weight": norm_weight(hidden, seed=9),
    }


def llama_config(target: Target, kv_heads: int, **changes: Any) -> dict[str, Any]:
    """The config of a decoder layer as large as the target's."""
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
