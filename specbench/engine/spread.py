"""Spread a model over several GPUs. The layers are spread in order; the first GPU has the rest.

Drafters share the target's embedding, norm and head, so these stay together. `models.memory`
decides whether a model is too large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from accelerate.hooks import remove_hook_from_submodules
from accelerate.utils import send_to_device
from torch import nn
from transformers import PreTrainedModel

from specbench.engine.model_parts import decoder_layers


@dataclass(frozen=True, slots=True)
class Spread:
    """The GPUs of a model, and the bytes that the first GPU keeps free for drafters."""

    devices: tuple[torch.device, ...]
    draft_bytes: int = 0

    def place(self, model: PreTrainedModel) -> dict[str, torch.device]:
        """The device of each module by name, for a model without weights (see `device_map`).

        Each GPU gets a share of the layers in proportion to its free memory.
        """
        free_bytes = [torch.cuda.mem_get_info(device)[0] for device in self.devices]
        other_bytes = num_bytes(model) - num_bytes(decoder_layers(model))
        free_bytes[0] -= other_bytes + self.draft_bytes
        return device_map(model, self.devices, free_bytes)


def device_map(
    model: PreTrainedModel, devices: Sequence[torch.device], free_bytes: Sequence[float]
) -> dict[str, torch.device]:
    """The device of each module by name. Layers are shared in proportion to `free_bytes`."""
    layers = decoder_layers(model)
    list_name = next(name for name, module in model.named_modules() if module is layers)
    # All other children of the modules that contain the list go to the first device.
    device_by_name: dict[str, torch.device] = {}
    parent: nn.Module = model
    prefix = ""
    for child_name in list_name.split("."):
        others = [name for name, _ in parent.named_children() if name != child_name]
        device_by_name |= dict.fromkeys((f"{prefix}{name}" for name in others), devices[0])
        parent = parent.get_submodule(child_name)
        prefix += f"{child_name}."
    # A device takes the layers whose middle lies in its share of all free bytes.
    ends = [*accumulate(max(free, 0) for free in free_bytes)]
    for index in range(len(layers)):
        middle = (index + 0.5) / len(layers) * ends[-1]
        device_index = sum(end <= middle for end in ends[:-1])
        device_by_name[f"{prefix}{index}"] = devices[device_index]
    return device_by_name


def device_of(name: str, device_by_name: Mapping[str, torch.device]) -> torch.device:
    """The device of the parameter of this name. A module named "" is the whole model."""
    return next(
        device
        for module_name, device in device_by_name.items()
        if not module_name or f"{name}.".startswith(f"{module_name}.")
    )


def send_inputs(model: PreTrainedModel, device_by_name: Mapping[str, torch.device]) -> None:
    """Let each module in `device_by_name` receive its inputs on its own device.

    Unlike accelerate's hooks, torch's hooks stay with a layer that a copy of the model uses.
    """
    remove_hook_from_submodules(model)
    for name, device in device_by_name.items():
        module = model.get_submodule(name)
        module.register_forward_pre_hook(partial(_inputs_on, device), with_kwargs=True)


def num_bytes(module: nn.Module) -> int:
    """Bytes of a module's parameters. Shared parameters count once."""
    return sum(parameter.nbytes for parameter in module.parameters())


def _inputs_on(device: torch.device, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    # The cache is not moved, because each of its layers is on the device of the model's layer.
    return send_to_device(args, device), send_to_device(kwargs, device, skip_keys="past_key_values")
