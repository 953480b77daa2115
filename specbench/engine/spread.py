"""A model over several GPUs: its layers in order, each on one, and everything else on the first.

Drafters share the target's embedding, norm and head, which therefore stay together.
`models.memory` decides whether a model is too large.
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
    """The GPUs of a model, and the bytes that the first keeps free for drafters."""

    devices: tuple[torch.device, ...]
    draft_bytes: int = 0

    def place(self, model: PreTrainedModel) -> dict[str, torch.device]:
        """The device of each module by name, for a model without weights (`device_map`).

        Each GPU gets a share of the layers in proportion to its free memory.
        """
        free = [torch.cuda.mem_get_info(device)[0] for device in self.devices]
        layers = decoder_layers(model)
        other_bytes = num_bytes(model) - num_bytes(layers)
        return places(model, self.devices, [free[0] - other_bytes - self.draft_bytes, *free[1:]])


def places(
    model: PreTrainedModel, devices: Sequence[torch.device], rooms: Sequence[float]
) -> dict[str, torch.device]:
    """The device of each module by name, with layers in proportion to the `rooms` in bytes."""
    layers = decoder_layers(model)
    name = next(name for name, module in model.named_modules() if module is layers)
    found: dict[str, torch.device] = {}
    parent: nn.Module = model
    path = ""
    for part in name.split("."):
        others = [child for child, _ in parent.named_children() if child != part]
        found |= {f"{path}{child}": devices[0] for child in others}
        parent, path = parent.get_submodule(part), f"{path}{part}."
    ends = [*accumulate(max(room, 0) for room in rooms)]
    for index in range(len(layers)):
        middle = (index + 0.5) / len(layers) * ends[-1]
        found[f"{path}{index}"] = devices[sum(end <= middle for end in ends[:-1])]
    return found


def device_of(name: str, placed: Mapping[str, torch.device]) -> torch.device:
    """The device of a parameter by its name."""
    return next(device for at, device in placed.items() if f"{name}.".startswith(at and f"{at}."))


def send_inputs(model: PreTrainedModel, placed: Mapping[str, torch.device]) -> None:
    """Let each placed module receive its inputs on its own device.

    Unlike accelerate's hooks, torch's stay with a layer that is used in a copy of the model.
    """
    remove_hook_from_submodules(model)
    for name, device in placed.items():
        module = model.get_submodule(name)
        module.register_forward_pre_hook(partial(_sent, device), with_kwargs=True)


def num_bytes(module: nn.Module) -> int:
    """Bytes of a module's parameters, shared ones once."""
    return sum(parameter.nbytes for parameter in module.parameters())


def _sent(device: torch.device, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    # The cache's layers lie on the devices of the model's.
    return send_to_device(args, device), send_to_device(kwargs, device, skip_keys="past_key_values")
