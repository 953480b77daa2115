"""Fixed-shape functions as captured graphs: recorded once for each set of shapes, then replayed.

Knows functions of tensors and how to record them on a CUDA device. Knows nothing of models, trees
or methods. Everything but `CudaRecorder` also works on a CPU, with a recorder that traces.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.engine.execution import Function
from specbench.engine.ops import TORCH, Ops, Reach
from specbench.engine.tree import padded_size
from specbench.errors import reason_of

BUCKET = 256
"""A cache is looked at in multiples of so many rows."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A function's outputs, which `replay` computes anew from what its inputs hold by then."""

    outputs: tuple[Tensor, ...]
    replay: Callable[[], None]


class Recorder(Protocol):
    """Records what a function does to its inputs. `generators` are those that it may draw from."""

    def __call__(
        self, function: Callable[[], tuple[Tensor, ...]], generators: Iterable[torch.Generator]
    ) -> Recording: ...


class CudaRecorder:
    """Records CUDA graphs, whose scratch memory is one pool.

    They are not replayed in the order of their recording: what is in the pool lasts until another
    one is. So each ends with copying its outputs to memory outside, and reads nothing in the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._first: torch.cuda.CUDAGraph | None = None  # which holds the pool
        self._why_broken: str | None = None

    def __call__(
        self, function: Callable[[], tuple[Tensor, ...]], generators: Iterable[torch.Generator]
    ) -> Recording:
        if self._why_broken is not None:
            raise RuntimeError(f"an earlier recording failed: {self._why_broken}")
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(2):  # libraries choose their kernels, and compile them
                outputs = tuple(map(torch.empty_like, function()))
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._stream.device)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            pool = None if self._first is None else self._first.pool()
            with _no_garbage_collection(), torch.cuda.graph(graph, pool, self._stream):
                for output, made in zip(outputs, function(), strict=True):
                    output.copy_(made)
        except Exception as error:  # what a failed capture leaves behind lets no other one begin
            torch.cuda.set_stream(current)
            self._why_broken = reason_of(error)
            raise
        self._first = self._first or graph
        return Recording(outputs, graph.replay)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Garbage may hold graphs, which must not be destroyed while one is captured."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(slots=True)
class _Entry:
    """One recording with the buffers that it reads; `given` is what they were last filled from."""

    inputs: list[Tensor]
    recording: Recording
    given: list[Tensor | None] = field(default_factory=list)


class Graphs:
    """Runs functions as recordings. What cannot be recorded runs as it is, and says so.

    `num_late` counts recordings since `close`, each of which held up a completion.
    """

    is_static = True

    def __init__(self, recorder: Recorder, ops: Ops = TORCH) -> None:
        self.ops = ops
        self.failures: set[str] = set()
        self._is_closed = False
        self.num_late = 0
        self._recorder = recorder
        self._captured: dict[Function, _Captured] = {}
        self.outputs: set[int] = set()

    def wrap(self, function: Function) -> Function:
        return self._captured.setdefault(function, _Captured(self, function))

    def reach(self, num_rows: int, num_more: int) -> Reach:
        return Reach(-(-(num_rows + num_more) // BUCKET) * BUCKET, is_exact=False)

    def num_nodes(self, num_nodes: int) -> int:
        return padded_size(num_nodes)

    def close(self) -> None:
        self._is_closed = True

    def forget(self) -> None:
        """Drop all recordings, since memory that they use has moved."""
        for captured in self._captured.values():
            captured.entries.clear()
        self.outputs.clear()

    def record(self, function: Function, inputs: tuple[Tensor, ...], named: Any) -> _Entry | str:
        """The recording for inputs of these shapes, or why there is none."""
        self.num_late += self._is_closed
        # What a recording has written is read where it lies; everything else is copied.
        buffers = [x if _storage(x) in self.outputs else x.clone() for x in inputs]
        generators = [value.generator for value in named.values() if hasattr(value, "generator")]
        states = [generator.get_state() for generator in generators]
        recording, why = None, ""
        try:
            recording = self._recorder(lambda: function(*buffers, **named), generators)
        except Exception as error:  # whatever a model or a method does that a graph cannot
            why = f"{function.__qualname__}: {reason_of(error)}"
        with suppress(RuntimeError):  # of generators that a failed recording left in a bad state
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)  # recording draws from them too
        if recording is None:
            return why
        self.outputs.update(map(_storage, recording.outputs))
        return _Entry(buffers, recording, [None] * len(buffers))


class _Captured:
    """A function that is recorded for each set of shapes and names, and replayed.

    An input that is the very tensor of the last call is taken to hold what it held: tensors that
    are given twice are never changed in between, unless a recording wrote them.
    """

    def __init__(self, owner: Graphs, function: Function) -> None:
        self.entries: dict[Hashable, _Entry | str] = {}
        self._owner = owner
        self._function = function

    def __call__(self, *inputs: Tensor, **named: Any) -> tuple[Tensor, ...]:
        key = (*((x.shape, x.dtype) for x in inputs), *named.items())
        if key not in self.entries:
            self.entries[key] = self._owner.record(self._function, inputs, named)
        entry = self.entries[key]
        if isinstance(entry, str):
            self._owner.failures.add(entry)
            return self._function(*inputs, **named)
        for i, (buffer, given) in enumerate(zip(entry.inputs, inputs, strict=True)):
            if buffer.data_ptr() != given.data_ptr() and entry.given[i] is not given:
                buffer.copy_(given)
                entry.given[i] = None if _storage(given) in self._owner.outputs else given
        entry.recording.replay()
        return entry.recording.outputs


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
