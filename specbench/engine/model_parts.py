"""Find parts and limits of transformers models, whose classes and configs name them differently."""

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.engine.layers.config_fields import declared
from specbench.engine.layers.weights import weight_bytes
from specbench.errors import CheckpointError

_LIST_NAMES = ("layers", "h")
"""Names that base models give to their list of decoder layers."""

_TREE_ROOM = 1024
"""Number of rows that are kept free for a tree."""

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def decoder(model: PreTrainedModel) -> nn.Module:
    """The part of a model that has its decoder layers and computes its final hidden states."""
    module: nn.Module = model
    for name in _path(model):
        module = getattr(module, name, module)
    return module


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a model: `layers` or `h` of its decoder."""
    base = decoder(model)
    for name in _LIST_NAMES:
        layers = getattr(base, name, None)
        if isinstance(layers, nn.ModuleList):
            return layers
    raise CheckpointError(
        f"{type(model).__name__} has no list of decoder layers that specbench knows.",
        "Use a decoder-only model such as Llama, Qwen, Mistral or GPT-NeoX.",
    )


def _path(model: PreTrainedModel) -> list[str]:
    """The names of the attributes that lead from a model to its decoder.

    Llama-4's text class declares a name that only its image class has. "model" replaces this name.
    """
    prefix = "model" if model.base_model is model else model.base_model_prefix
    base = getattr(model, prefix, None)
    return [prefix, *(name for name in ("language_model", "decoder") if hasattr(base, name))]


def rows_of(
    model: PreTrainedModel, states: Mapping[int, Tensor], device: torch.device
) -> dict[int, Tensor]:
    """The hidden states [n, hidden] of each layer, from its input or output [1, n, hidden].

    Raises:
        CheckpointError: the model's layers have several streams, as in Gemma-3n.
    """
    for layer_states in states.values():
        if layer_states.dim() != 3:
            raise CheckpointError(
                f"The layers of {type(model).__name__} have several streams of hidden states, "
                f"{list(layer_states.shape)}, and a draft head reads one.",
                "Use a method that reads no layers of the target (EAGLE-3, P-EAGLE and DFlash do), "
                "or another model.",
            )
    return {layer: layer_states[0].to(device) for layer, layer_states in states.items()}


def context_length(config: Any) -> int:
    """Number of tokens that a model of this config can attend to."""
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        raise CheckpointError(
            f"The model's config has no context length (max_position_embeddings is {context!r}).",
            "Add max_position_embeddings to its config.json.",
        )
    if declared(config, "attn_temperature_tuning"):
        # Llama-4 scales queries by their row, not by their position, in steps of `floor_scale`
        # rows. Both give the same scale in the first step, whose last rows stay free for a tree.
        if config.floor_scale <= _TREE_ROOM:
            raise CheckpointError(
                f"The model scales its queries in steps of {config.floor_scale} rows (floor_scale)."
                f" Trees run only within the first step, where {_TREE_ROOM} rows must stay free.",
                "Use a model whose floor_scale is larger, such as Llama-4's own 8192.",
            )
        context = min(context, config.floor_scale - _TREE_ROOM)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Longer sequences need other frequencies, even for the keys that are already in the cache.
        context = min(context, rope["original_max_position_embeddings"])
    return context


def with_first_layers(model: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """A model with only the first decoder layers of `model`, whose modules it shares."""
    layers = decoder_layers(model)
    shorter: PreTrainedModel = _copied(model)
    owner: nn.Module = shorter  # after the loop, the module with the list of layers
    for name in _path(model):
        copied = _copied(getattr(owner, name))
        setattr(owner, name, copied)
        owner = copied
    list_name = next(name for name in _LIST_NAMES if getattr(owner, name, None) is layers)
    setattr(owner, list_name, nn.ModuleList(layers[:num_layers]))
    return shorter


def _copied(module: ModuleT) -> ModuleT:
    """A copy with the same parts. Replacing a part of the copy does not change the original."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


def pass_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that one forward over text reads.

    The parts for images and sound do not count. Embeddings do not count either, because a forward
    reads only some of their rows. But an embedding that is also the output head is read completely,
    and counts.
    """
    body = decoder(model)
    head = model.get_output_embeddings()
    embeddings = [module.weight for module in body.modules() if isinstance(module, nn.Embedding)]
    uncounted = [weight for weight in embeddings if weight.data_ptr() != head.weight.data_ptr()]
    return weight_bytes(body, head) - weight_bytes(*uncounted)
