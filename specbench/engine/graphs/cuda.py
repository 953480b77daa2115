"""Run fixed-shape functions as captured graphs: record them once per set of shapes, then replay.

`graphs.recorder` makes the recordings. This also works on a CPU, with a recorder that traces.
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
from specbench.engine.tree import PROMPT_SIZES, padded_size
from specbench.errors import reason_of


@dataclass(slots=True)
class _Buffer:
    """Memory from which recordings read an input, and the tensor that was last copied to it."""

    tensor: Tensor
    source: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A recording and the buffer of each input. None stands for an input that is read in place."""

    inputs: tuple[_Buffer | None, ...]
    recording: Recording


class Graphs(Execution):
    """Runs functions as recordings. A function that cannot be recorded runs eagerly (`failures`).

    If an input is an output of another recording, it is read in place, and each such tensor needs
    a recording of its own. Other inputs are copied. A function may call other recorded functions.
    Its recording then includes their operations. Functions do not write to each other's outputs.
    The recordings of a function share the memory of inputs and outputs that have equal shapes.

    `num_recordings` counts all recordings. `num_late` counts the recordings made after `close`,
    which all delayed a completion.
    """

    is_static = True
    is_joined = True

    def __init__(self, recorder: Recorder, ops: Ops = TORCH) -> None:
        super().__init__(ops)
        self.num_late = 0
        self._is_closed = False
        self._recorder = recorder
        self._captured: dict[Function, _Captured] = {}
        self._outputs: dict[int, Tensor] = {}  # outputs of recordings, by id
        self._output_storages: set[int] = set()
        self.used: set[_Entry] = set()

    @property
    def num_recordings(self) -> int:
        return sum(
            isinstance(entry, _Entry)
            for captured in self._captured.values()
            for entry in captured.entries.values()
        )

    def wrap(self, function: Function) -> Function:
        return self._captured.setdefault(function, _Captured(self, function))

    def cache_span(self, num_rows: int, num_more: int) -> CacheSpan:
        return CacheSpan(bucket(num_rows + num_more), is_exact=False)

    def num_nodes(self, num_nodes: int) -> int:
        return padded_size(num_nodes)

    def prompt_size(self, num_tokens: int) -> int | None:
        if self.is_paused:
            return None
        return next((size for size in PROMPT_SIZES if size >= num_tokens), None)

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
        self._outputs.clear()
        self._output_storages.clear()
        self.used.clear()

    @property
    def buffer_bytes(self) -> int:
        return sum(captured.buffer_bytes for captured in self._captured.values())

    def used_bytes(self) -> int:
        nbytes_by_id = {
            id(tensor): tensor.nbytes for entry in self.used for tensor in _memory_of(entry)
        }
        scratch_bytes = max((entry.recording.scratch_bytes for entry in self.used), default=0)
        self.used.clear()
        return sum(nbytes_by_id.values()) + scratch_bytes

    def output_id(self, tensor: Tensor) -> int | None:
        """The identity of this tensor if it is an output of a recording, or else None."""
        return id(tensor) if id(tensor) in self._outputs else None

    def is_written(self, tensor: Tensor) -> bool:
        """True if a replay may write to the tensor's memory."""
        return tensor.untyped_storage().data_ptr() in self._output_storages

    def record(self, captured: _Captured, inputs: tuple[Tensor, ...], named: Any) -> _Entry | str:
        """Make the recording for inputs of these shapes, or return the reason that it fails."""
        function = captured.function
        buffers: list[_Buffer | None] = []  # as in `_Entry.inputs`
        read: list[Tensor] = []  # the tensors that the recording reads
        for index, tensor in enumerate(inputs):
            buffer = None if self.output_id(tensor) else captured.buffer(index, tensor)
            buffers.append(buffer)
            read.append(buffer.tensor if buffer else tensor)
        generators = [
            sampler.generator for sampler in named.values() if hasattr(sampler, "generator")
        ]
        states = [generator.get_state() for generator in generators]

        def run() -> Outputs:
            with self.paused():  # functions that it calls become part of the recording
                return function(*read, **named)

        try:
            recording = self._recorder(run, generators, captured.outputs_like)
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
        return _Entry(tuple(buffers), recording)


_BufferKey: TypeAlias = tuple[int, torch.Size, torch.dtype]
"""A tensor's index among a function's inputs or outputs, with its shape and its dtype."""


class _Captured:
    """A function that is recorded for each set of shapes and keyword arguments, then replayed.

    If an input is the same tensor object as in the last call, it is not copied again, because its
    content is assumed to be unchanged. Only a recording may change a tensor between two calls.
    """

    def __init__(self, owner: Graphs, function: Function) -> None:
        self.function = function
        self.entries: dict[Hashable, _Entry | str] = {}
        self._owner = owner
        self._inputs: dict[_BufferKey, _Buffer] = {}
        self._outputs: dict[_BufferKey, Tensor] = {}

    def __call__(self, *inputs: Tensor, **named: Any) -> Outputs:
        """Replay the recording for inputs of these shapes. The first call makes the recording."""
        owner = self._owner
        if owner.is_paused:
            return self.function(*inputs, **named)
        key = (*((t.shape, t.dtype, owner.output_id(t)) for t in inputs), *named.items())
        if key not in self.entries:
            self.entries[key] = owner.record(self, inputs, named)
        entry = self.entries[key]
        if isinstance(entry, str):
            owner.failures.add(entry)
            return self.function(*inputs, **named)
        for buffer, tensor in zip(entry.inputs, inputs, strict=True):
            # The same object has the same content. A copy would cost one more launch per step.
            if buffer and buffer.source is not tensor:
                buffer.tensor.copy_(tensor)
                buffer.source = None if owner.is_written(tensor) else tensor
        owner.used.add(entry)
        entry.recording.replay()
        return entry.recording.outputs

    def buffer(self, index: int, tensor: Tensor) -> _Buffer:
        """The memory for the input of that index, with the content of `tensor`."""
        key = (index, tensor.shape, tensor.dtype)
        if key not in self._inputs:
            self._inputs[key] = _Buffer(torch.empty_like(tensor))
        buffer = self._inputs[key]
        buffer.tensor.copy_(tensor)
        buffer.source = None
        return buffer

    def outputs_like(self, outputs: Outputs) -> Outputs:
        """Memory for outputs like these, shared by all recordings."""
        memory = []
        for index, output in enumerate(outputs):
            key = (index, output.shape, output.dtype)
            if key not in self._outputs:
                self._outputs[key] = torch.empty_like(output)
            memory.append(self._outputs[key])
        return tuple(memory)

    def clear(self) -> None:
        """Drop all recordings and their memory."""
        self.entries.clear()
        self._inputs.clear()
        self._outputs.clear()

    @property
    def buffer_bytes(self) -> int:
        buffers = (buffer.tensor for buffer in self._inputs.values())
        return sum(tensor.nbytes for tensor in (*buffers, *self._outputs.values()))


def _memory_of(entry: _Entry) -> Iterator[Tensor]:
    """The memory of a recording's outputs, and of its inputs that are not read in place."""
    yield from (buffer.tensor for buffer in entry.inputs if buffer)
    yield from entry.recording.outputs
