"""Weights made in memory instead of read from a folder, and targets built from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specbench.engine.execution import Execution
from specbench.engine.spread import Spread, device_of, send_inputs
from specbench.engine.target import Target
from specbench.errors import CheckpointError


class WeightSource(Protocol):
    """Replacement for a checkpoint folder: the config of config.json, and every tensor by name.

    `name` identifies it in errors. `tensors` makes the tensors one by one, anew in each call.
    """

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]: ...


def make_target(
    source: WeightSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    execution: Execution | None = None,
    spread: Spread | None = None,
) -> Target:
    """Build the causal language model of a source's config from its tensors.

    The tensors become the parameters without a copy, except those that `spread` moves from
    `device` to another GPU.

    Raises:
        CheckpointError: the tensors do not cover the model, or have other shapes.
    """
    config = AutoConfig.for_model(**source.config)
    model = without_weights(config, dtype)
    placed = spread.place(model) if spread else {"": device}
    missing = dict(model.named_parameters())
    for name, tensor in source.tensors(device, dtype):
        parameter = missing.pop(name, None)
        if parameter is None or parameter.shape != tensor.shape:
            raise _mismatch(source, f"makes {name} {list(tensor.shape)}, which the model lacks")
        tensor = tensor.to(device_of(name, placed))
        _replace(model, name, nn.Parameter(tensor, requires_grad=False))
    if missing:
        raise _mismatch(source, f"lacks {', '.join(sorted(missing)[:3])}")
    for name, buffer in [*model.named_buffers()]:
        _replace(model, name, buffer.to(device_of(name, placed)))
    if spread:
        send_inputs(model, placed)
    return Target(model, execution)


def without_weights(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The causal language model of a config, whose parameters have shapes alone."""
    with init_empty_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model


def _replace(model: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, tensor)


def _mismatch(source: WeightSource, what: str) -> CheckpointError:
    hint = "Its config and its tensors must describe the same model."
    return CheckpointError(f"{source.name} {what}.", hint)
