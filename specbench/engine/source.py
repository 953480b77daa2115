"""Weights made in memory instead of read from a folder, and targets built from them.

Knows names and tensors, not what the weights mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.engine.graphs.execution import Execution
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
) -> Target:
    """Build the causal language model of a source's config from its tensors.

    The tensors become the parameters without a copy.

    Raises:
        CheckpointError: the tensors do not cover the model, or have other shapes.
    """
    config = AutoConfig.for_model(**source.config)
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    missing = dict(model.named_parameters())
    for name, tensor in source.tensors(device, dtype):
        parameter = missing.pop(name, None)
        if parameter is None or parameter.shape != tensor.shape:
            raise _mismatch(source, f"makes {name} {list(tensor.shape)}, which the model lacks")
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))
    if missing:
        raise _mismatch(source, f"lacks {', '.join(sorted(missing)[:3])}")
    return Target(model.to(device), execution)


def _mismatch(source: WeightSource, what: str) -> CheckpointError:
    hint = "Its config and its tensors must describe the same model."
    return CheckpointError(f"{source.name} {what}.", hint)
