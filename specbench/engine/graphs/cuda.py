"""Fixed-shape functions as captured graphs: recorded once per set of shapes, then replayed.

`graphs.recorder` makes the recordings. Also works on a CPU, with a recorder that traces.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from specbench.engine.buckets import bucket
from specbench.engine.execution import Execution, Function
from specbench.engine.graphs.recorder import Outputs, Recorder, Recording
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.layers.ops import TORCH, Ops
from specbench.engine.tree import padded_size
from specbench.errors import reason_of


@dataclass(slots=True)
class _Buffer:
    """Memory that recordings read an input from, and the tensor last copied to it."""

    tensor: Tensor
    given: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """One recording and its input buffers; None for an input that is read in place."""

    inputs: tuple[_Buffer | None, ...]
    recording: Recording


class Graphs(Execution):
    """Runs functions as recordings. One that cannot be recorded runs eagerly; see `failures`.

    An output of a recording is read in place, by a separate recording; other inputs are
    copied. No recording writes to another one's outputs. Recordings of one function share the
    memory of inputs and outputs of equal shape.

    `num_recordings` counts all recordings. `num_late` counts those made after `close`: each
    delayed a completion.
    """

    is_static = True

    def __init__(self, recorder: Recorder, ops: Ops = TORCH) -> None:
        super().__init__(ops)
        self.num_late = 0
        self._is_closed = False
        self._recorder = recorder
        self._captured: dict[Function, _Captured] = {}
        self._outputs: dict[int, Tensor] = {}  # by id
        self._output_storages: set[int] = set()
        self.used: set[_Entry] = set()

    @property
    def num_recordings(self) -> int:
        entries = (entry for made in self._captured.values() for entry in made.entries.values())
        return sum(isinstance(entry, _Entry) for entry in entries)

    def wrap(self, function: Function) -> Function:
        return self._captured.setdefault(function, _Captured(self, function))

    def cache_span(self, num_rows: int, num_more: int) -> CacheSpan:
        return CacheSpan(bucket(num_rows + num_more), is_exact=False)

    def num_nodes(self, num_nodes: int) -> int:
        return padded_size(num_nodes)

    def close(self) -> None:
        self._is_closed = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False

    def discard_graphs(self) -> None:
        """Drop all recordings, because memory that they use has moved."""
        for captured in self._captured.values():
            captured.clear()
        for known in (self._outputs, self._output_storages, self.used):
            known.clear()

    @property
    def buffer_bytes(self) -> int:
        return sum(captured.buffer_bytes for captured in self._captured.values())

    def used_bytes(self) -> int:
        used = {id(tensor): tensor.nbytes for entry in self.used for tensor in _memory_of(entry)}
        scratch = max((entry.recording.scratch_bytes for entry in self.used), default=0)
        self.used.clear()
        return sum(used.values()) + scratch

    def place(self, x: Tensor) -> int | None:
        """Identity of this tensor if it is an output of a recording; otherwise None."""
        return id(x) if id(x) in self._outputs else None

    def is_written(self, x: Tensor) -> bool:
        """True if a replay may write to the tensor's memory."""
        return x.untyped_storage().data_ptr() in self._output_storages

    def record(self, captured: _Captured, inputs: tuple[Tensor, ...], named: Any) -> _Entry | str:
        """Make the recording for inputs of these shapes; returns the reason if it fails."""
        function = captured.function
        buffers = tuple(
            None if self.place(x) else captured.buffer(i, x) for i, x in enumerate(inputs)
        )
        read = [b.tensor if b else x for b, x in zip(buffers, inputs, strict=True)]
        generators = [value.generator for value in named.values() if hasattr(value, "generator")]
        states = [generator.get_state() for generator in generators]
        try:
            recording = self._recorder(
                lambda: function(*read, **named), generators, captured.outputs_like
            )
        except Exception as error:  # models and methods may do anything that a graph cannot
            return f"{function.__qualname__}: {reason_of(error)}"
        finally:
            with suppress(RuntimeError):  # a failed recording leaves generators in a bad state
                for generator, state in zip(generators, states, strict=True):
                    generator.set_state(state)  # recording draws from them too
        self.num_late += self._is_closed
        for output in recording.outputs:
            self._outputs[id(output)] = output
            self._output_storages.add(output.untyped_storage().data_ptr())
        return _Entry(buffers, recording)


_Like: TypeAlias = tuple[int, torch.Size, torch.dtype]
"""Index of a tensor among a function's inputs or outputs, its shape and its dtype."""


class _Captured:
    """A function that is recorded for each set of shapes and keyword arguments, then replayed.

    If an input is the same tensor object as in the last call, its content is assumed unchanged
    and not copied again. Only a recording may change a tensor between two calls.
    """

    def __init__(self, owner: Graphs, function: Function) -> None:
        self.function = function
        self.entries: dict[Hashable, _Entry | str] = {}
        self._owner = owner
        self._inputs: dict[_Like, _Buffer] = {}
        self._outputs: dict[_Like, Tensor] = {}

    def __call__(self, *inputs: Tensor, **named: Any) -> Outputs:
        owner = self._owner
        if owner.is_paused:
            return self.function(*inputs, **named)
        key = (*((x.shape, x.dtype, owner.place(x)) for x in inputs), *named.items())
        if key not in self.entries:
            self.entries[key] = owner.record(self, inputs, named)
        entry = self.entries[key]
        if isinstance(entry, str):
            owner.failures.add(entry)
            return self.function(*inputs, **named)
        for buffer, given in zip(entry.inputs, inputs, strict=True):
            # The same object has the same content: copying it again would cost a launch per step.
            if buffer and buffer.given is not given:
                buffer.tensor.copy_(given)
                buffer.given = None if owner.is_written(given) else given
        owner.used.add(entry)
        entry.recording.replay()
        return entry.recording.outputs

    def buffer(self, place: int, x: Tensor) -> _Buffer:
        """The memory for the input at `place`, with `x` copied to it."""
        like = place, x.shape, x.dtype
        if like not in self._inputs:
            self._inputs[like] = _Buffer(torch.empty_like(x))
        buffer = self._inputs[like]
        buffer.tensor.copy_(x)
        buffer.given = None
        return buffer

    def outputs_like(self, made: Outputs) -> Outputs:
        """Memory for outputs like `made`, shared by all recordings."""
        likes = [(i, x.shape, x.dtype) for i, x in enumerate(made)]
        for like, x in zip(likes, made, strict=True):
            if like not in self._outputs:
                self._outputs[like] = torch.empty_like(x)
        return tuple(self._outputs[like] for like in likes)

    def clear(self) -> None:
        """Drop all recordings and their memory."""
        for known in (self.entries, self._inputs, self._outputs):
            known.clear()

    @property
    def buffer_bytes(self) -> int:
        buffers = (buffer.tensor for buffer in self._inputs.values())
        return sum(tensor.nbytes for tensor in (*buffers, *self._outputs.values()))


def _memory_of(entry: _Entry) -> Iterator[Tensor]:
    """Memory of a recording's inputs and outputs, without inputs that are another's outputs."""
    yield from (buffer.tensor for buffer in entry.inputs if buffer)
    yield from entry.recording.outputs
