"""Recordings on a CPU, which replay the operations of a function's first call."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from specbench.engine.graphs.recorder import Outputs, Recording, alike


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of an operation's result."""

    index: int


class _Tape(TorchDispatchMode):
    """A mode that records operations as they run."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, ...]] = []
        self._made: list[Tensor] = []
        self._slot_of: dict[int, _Slot] = {}  # by identity, which lasts while `_made` holds them

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if reads_a_value(func, args):
            raise RuntimeError(f"{func} reads a tensor's value while it is recorded")
        result = func(*args, **(kwargs or {}))
        leaves, shape = tree_flatten((args, kwargs or {}))
        given = self._slots(leaves)  # a result may be an argument, changed in place
        places = [self._add(output) for output in tree_leaves(result)]
        self._calls.append((func, given, shape, places))
        return result

    def finish(self, outputs: tuple[Tensor, ...]) -> Callable[[], list[Tensor]]:
        """A function that runs the operations again and returns the outputs."""
        calls, wanted = self._calls, self._slots(outputs)
        self._made.clear()

        def replay() -> list[Tensor]:
            outputs: dict[int, Tensor] = {}
            for func, given, shape, places in calls:
                args, kwargs = tree_unflatten(_filled(given, outputs), shape)
                outputs.update(zip(places, tree_leaves(func(*args, **kwargs)), strict=True))
            return _filled(wanted, outputs)

        return replay

    def _add(self, result: Any) -> int:
        if id(result) not in self._slot_of:
            self._slot_of[id(result)] = _Slot(len(self._made))
            self._made.append(result)
        return self._slot_of[id(result)].index

    def _slots(self, given: Iterable[Any]) -> list[Any]:
        return [self._slot_of.get(id(argument), argument) for argument in given]


def _filled(given: list[Any], outputs: dict[int, Tensor]) -> list[Any]:
    return [
        outputs[argument.index] if isinstance(argument, _Slot) else argument for argument in given
    ]


def reads_a_value(func: Any, args: Any) -> bool:
    """Return whether the host has to wait for values or for a size."""
    if func.overloadpacket.__name__.startswith("index") and isinstance(args[1], list | tuple):
        # An index of numbers gives a known shape, a mask an unknown one.
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    return any(tag in func.tags for tag in tags)


class TraceRecorder:
    """A recorder that works like a CUDA graph: values on the host are constants.

    Reading a tensor's value during the recording raises, as it does there.
    """

    num_recordings = 0

    def __call__(
        self, function: Callable[[], Outputs], generators: Iterable[torch.Generator],
        keep: Callable[[Outputs], Outputs] = alike,
    ) -> Recording:  # fmt: skip
        self.num_recordings += 1
        with _Tape() as tape:
            first = function()
        again = tape.finish(first)
        outputs = keep(first)

        def replay() -> None:
            for buffer, part in zip(outputs, again(), strict=True):
                buffer.copy_(part)

        return Recording(outputs, replay)
