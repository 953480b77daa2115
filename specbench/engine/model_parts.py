"""Parts and limits of transformers models, for which classes and configs have several names.

Knows modules and config fields, not how a model is run.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from specbench.errors import CheckpointError

_LISTS = ("layers", "h")
"""Names of the list of decoder layers in a base model."""

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a model: `layers` or `h` of its base model, or of the text part."""
    decoder = _text_part(model.base_model)
    for name in _LISTS:
        layers = getattr(decoder, name, None)
        if isinstance(layers, nn.ModuleList):
            return layers
    raise CheckpointError(
        f"{type(model).__name__} has no list of decoder layers that specbench knows.",
        "Use a decoder-only model such as Llama, Qwen, Mistral or GPT-NeoX.",
    )


def context_length(config: Any) -> int:
    """Number of tokens that a model of this config can attend to."""
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        raise CheckpointError(
            f"The model's config has no context length (max_position_embeddings is {context!r}).",
            "Add max_position_embeddings to its config.json.",
        )
    if getattr(config, "attn_temperature_tuning", False):
        # Llama-4 scales queries by their row instead of their position, in steps of `floor_scale`
        # rows. Within the first step both are the same, with room for a tree at its end.
        context = min(context, max(config.floor_scale - 1024, 1))
    return context


def with_first_layers(model: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """The model with only its first decoder layers; its modules are those of the given one."""
    part, layers = _copied(model), decoder_layers(model)
    decoder = base = _copied(model.base_model)
    setattr(part, part.base_model_prefix, base)
    if (text := _text_part(base)) is not base:
        decoder = base.language_model = _copied(text)
    name = next(name for name in _LISTS if getattr(decoder, name, None) is layers)
    setattr(decoder, name, nn.ModuleList(layers[:num_layers]))
    return part


def _text_part(base: nn.Module) -> nn.Module:
    """The language model of a base model that also reads images; otherwise the base model."""
    part: nn.Module = getattr(base, "language_model", base)
    return part


def _copied(module: ModuleT) -> ModuleT:
    """A copy with the same parts, which can be replaced without an effect on the original."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied
