"""Recordings on a CPU: the operations of a function's first call are replayed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.engine.graphs.recorder import Outputs, Recording, alike


@dataclass(frozen=True, slots=True)
class _Slot:
    """A placeholder for an operation's result."""

    index: int


@dataclass(frozen=True, slots=True)
class _Call:
    """An operation with its arguments; results of other operations are slots."""

    func: Callable[..., Any]
    num_args: int
    given: dict[Any, Any]
    slots: dict[Any, Any]
    results: tuple[_Slot, ...]


class _Tape(TorchDispatchMode):
    """Records operations as they run."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self._made: list[Tensor] = []
        self._slot_of: dict[int, _Slot] = {}  # by identity, which lasts while `_made` holds them

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _reads_a_value(func, args):
            raise RuntimeError(f"{func} reads a tensor's value while it is recorded")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        slots = {key: self._slots(arg) for key, arg in given.items() if self._is_made(arg)}
        results = tuple(self._add(tensor) for tensor in _tensors(result))
        self._calls.append(_Call(func, len(args), given, slots, results))
        return result

    def finish(self, outputs: tuple[Tensor, ...]) -> Callable[[], tuple[Tensor, ...]]:
        """A function that runs the operations again and returns the outputs."""
        calls, wanted = self._calls, [self._slots(output) for output in outputs]
        num_slots = len(self._made)
        self._made.clear()

        def replay() -> tuple[Tensor, ...]:
            made: list[Any] = [None] * num_slots
            for call in calls:
                given = dict(call.given)
                for key, slots in call.slots.items():
                    given[key] = _filled(slots, made)
                args = [given.pop(i) for i in range(call.num_args)]
                result = call.func(*args, **given)
                for slot, tensor in zip(call.results, _tensors(result), strict=True):
                    made[slot.index] = tensor
            return tuple(_filled(slots, made) for slots in wanted)

        return replay

    def _add(self, tensor: Tensor) -> _Slot:
        """The slot of a result, which may be an argument changed in place."""
        if id(tensor) not in self._slot_of:
            self._slot_of[id(tensor)] = _Slot(len(self._made))
            self._made.append(tensor)
        return self._slot_of[id(tensor)]

    def _is_made(self, arg: Any) -> bool:
        return any(id(tensor) in self._slot_of for tensor in _tensors(arg))

    def _slots(self, arg: Any) -> Any:
        if isinstance(arg, list | tuple):
            return [self._slots(part) for part in arg]
        return self._slot_of.get(id(arg), arg)


def _filled(slots: Any, made: list[Any]) -> Any:
    if isinstance(slots, list):
        return [_filled(part, made) for part in slots]
    return made[slots.index] if isinstance(slots, _Slot) else slots


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [x for x in value if isinstance(x, Tensor)] if isinstance(value, list | tuple) else []


def _reads_a_value(func: Any, args: Any) -> bool:
    """True if the host has to wait for values or for a size."""
    if func is torch.ops.aten.index.Tensor:  # by numbers its shape is known, by a mask it is not
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    return any(tag in func.tags for tag in tags)


class TraceRecorder:
    """Records like a CUDA graph: values on the host are constants.

    Like there, reading a tensor's value during the recording raises.
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
