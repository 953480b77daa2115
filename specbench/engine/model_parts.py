"""Parts and limits of transformers models. Classes and configs name them differently."""

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
"""Names of the list of decoder layers in a base model."""

_TREE_ROOM = 1024
"""Rows that are kept for a tree."""

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
    """The attributes that lead from a model to its decoder.

    Llama-4's text class declares an attribute that only its image class has; "model" replaces it.
    """
    prefix = "model" if model.base_model is model else model.base_model_prefix
    base = getattr(model, prefix, None)
    path = [prefix]
    path += [name for name in ("language_model", "decoder") if hasattr(base, name)]
    return path


def rows_of(
    model: PreTrainedModel, states: Mapping[int, Tensor], device: torch.device
) -> dict[int, Tensor]:
    """Hidden states [n, hidden] of each layer, from the layers' inputs or outputs [1, n, hidden].

    Raises:
        CheckpointError: the model's layers have several streams, as Gemma-3n's have.
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
        # Llama-4 scales queries by their row instead of their position, in steps of `floor_scale`
        # rows. Both give the same scale within the first step, whose last rows are left to a tree.
        if config.floor_scale <= _TREE_ROOM:
            raise CheckpointError(
                f"The model scales its queries in steps of {config.floor_scale} rows (floor_scale)."
                f" Trees run only within the first step, where {_TREE_ROOM} rows must stay free.",
                "Use a model whose floor_scale is larger, such as Llama-4's own 8192.",
            )
        context = min(context, config.floor_scale - _TREE_ROOM)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Longer sequences need other frequencies, also for the keys already in the cache.
        context = min(context, rope["original_max_position_embeddings"])
    return context


def with_first_layers(model: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """The model with only its first decoder layers. It shares the given model's modules."""
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
    """A copy with the same parts, which can be replaced without an effect on the original."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


def pass_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights read by one forward over text.

    The parts for images and sound do not count, and neither do embeddings, because a forward reads
    only some of their rows. An embedding that is also the output head is read completely, and
    counted.
    """
    body = decoder(model)
    head = model.get_output_embeddings()
    tables = []  # weights of embeddings; the forward reads only some of their rows
    for module in body.modules():
        if isinstance(module, nn.Embedding):
            is_head = module.weight.data_ptr() == head.weight.data_ptr()
            if not is_head:
                tables.append(module.weight)
    return weight_bytes(body, head) - weight_bytes(*tables)
