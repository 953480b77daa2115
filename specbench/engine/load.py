"""Load a target from a local Hugging Face folder, or make it from weights in memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specbench.engine.execution import Execution
from specbench.engine.probe import replay_fault
from specbench.engine.quiet import quiet_transformers
from specbench.engine.spread import Spread, device_of, send_inputs
from specbench.engine.stored_formats import prepare_stored
from specbench.engine.supported import (
    check_attention,
    check_complete,
    check_positions,
    check_tree,
    check_type,
)
from specbench.engine.target import Target
from specbench.errors import CheckpointError, UserError, reason_of


class WeightSource(Protocol):
    """A replacement for a checkpoint folder, with the config of config.json and the tensors.

    `name` identifies it in errors. Each call of `tensors` makes all tensors again, one by one, and
    yields them with their names.
    """

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]: ...


def _model_of(
    source: WeightSource, dtype: torch.dtype, device: torch.device, spread: Spread | None
) -> PreTrainedModel:
    """Build the causal language model of a source's config with the source's tensors.

    The tensors become the parameters without a copy, unless `spread` moves them from `device` to
    another GPU.

    Raises:
        CheckpointError: the tensors do not cover the model, or have other shapes.
    """
    model = without_weights(AutoConfig.for_model(**source.config), dtype)
    devices = spread.place(model) if spread else {"": device}  # devices of modules, by name
    missing = dict(model.named_parameters())
    for name, tensor in source.tensors(device, dtype):
        parameter = missing.pop(name, None)
        if parameter is None or parameter.shape != tensor.shape:
            raise _mismatch(source, f"gives {name} {list(tensor.shape)}, which the model lacks")
        tensor = tensor.to(device_of(name, devices))
        _replace(model, name, nn.Parameter(tensor, requires_grad=False))
    if missing:
        raise _mismatch(source, f"lacks {', '.join(sorted(missing)[:3])}")
    for name, buffer in [*model.named_buffers()]:
        _replace(model, name, buffer.to(device_of(name, devices)))
    if spread:
        send_inputs(model, devices)
    return model


def without_weights(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The causal language model of a config. Its parameters have shapes but no data."""
    with init_empty_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model


def _replace(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a tensor in place of the parameter or buffer of that name."""
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, tensor)


def _mismatch(source: WeightSource, problem: str) -> CheckpointError:
    """The error for a source whose tensors do not fit its config."""
    return CheckpointError(
        f"{source.name} {problem}.", "Its config and its tensors must describe the same model."
    )


@quiet_transformers()  # our own checks say what is wrong with a folder
def load_target(
    path: Path | WeightSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    execution: Execution | None = None,
    spread: Spread | None = None,
) -> Target:
    """Load the causal language model in the folder `path`, or of a weight source, as a target.

    With `spread`, its layers are spread over several GPUs. `device` is the first of them.

    Raises:
        CheckpointError: the folder is not a causal language model, has missing or misshapen
            weights, or has attention that trees cannot use yet.
    """
    if not isinstance(path, Path):
        return with_graphs_proven(Target(_model_of(path, dtype, device, spread), execution))
    try:
        check_type(PreTrainedConfig.get_config_dict(path)[0].get("model_type"), path)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        check_attention(config, path)
        prepare_stored(config, path, device)
        # devices of modules, by name
        devices = spread.place(without_weights(config, dtype)) if spread else {"": device}
        model, report = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, device_map=None if device.type == "cpu" else devices,
            output_loading_info=True, ignore_mismatched_sizes=True,  # check_complete refuses them
            trust_remote_code=False,
        )  # fmt: skip
        check_complete(path, report, config)
        check_positions(model, path)
        if spread:
            send_inputs(model, devices)
        target = Target(model, execution)
        check_tree(target, path)
        return with_graphs_proven(target)
    except UserError:
        raise
    except Exception as error:  # a damaged or hostile folder may fail in any way
        raise broken(path, error) from error


def broken(path: Path, error: Exception) -> CheckpointError:
    """The error for a folder that transformers cannot load, with the first line of its reason."""
    return CheckpointError(
        f"{path} does not load as a causal language model: {reason_of(error)}",
        "Check that config.json and the weights are complete; copy or download them again.",
    )


def with_graphs_proven(target: Target) -> Target:
    """Make the target run its model's own forward eagerly if its steps cannot be replayed.

    Returns the same target.
    """
    if target.unfused_reason and target.execution.is_static and not target.eager_reason:
        target.eager_reason = replay_fault(target)
    return target
