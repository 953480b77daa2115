"""Recordings without a GPU: functions run eagerly, and operations that a capture forbids raise.

A capture forbids copying a tensor's values to the host and making tensors of values on the host.
Whether it allows writing a single number into a tensor must be tested on a GPU: see `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.engine.graphs.recorder import Outputs, Recording, alike

_WAITING = {
    "_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "unique",
    "unique_consecutive", "_unique2",
}  # fmt: skip


class Watch(TorchDispatchMode):
    """Raises RuntimeError at the first operation that a capture forbids."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _WAITING or (name.startswith("index") and _has_mask(args[1])):
            raise RuntimeError(f"{func} waits for the device")
        if name == "lift_fresh" and args[0].dim() > 0:
            raise RuntimeError(f"a tensor {list(args[0].shape)} is made of numbers on the host")
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Any) -> bool:
    """True if an index is a boolean mask, whose number of rows the host would have to know."""
    listed = indices if isinstance(indices, list | tuple) else ()
    return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in listed)


class FakeRecorder:
    """Watches a function once, then runs it again at each replay."""

    def __call__(
        self,
        function: Callable[[], Outputs],
        generators: Iterable[torch.Generator],
        keep: Callable[[Outputs], Outputs] = alike,
    ) -> Recording:
        with Watch():
            made = function()
        outputs = keep(made)
        for output, part in zip(outputs, made, strict=True):
            output.copy_(part)

        def replay() -> None:
            for output, part in zip(outputs, function(), strict=True):
                output.copy_(part)

        return Recording(outputs, replay)
