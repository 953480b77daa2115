"""Recordings of functions on tensors, and their capture on a CUDA device."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from specbench.engine.garbage import no_garbage_collection
from specbench.errors import reason_of

Outputs: TypeAlias = tuple[Tensor, ...]
Recorded: TypeAlias = Callable[[], Outputs]
Keep: TypeAlias = Callable[[Outputs], Outputs]
"""Returns the memory for outputs like its argument."""
Generators: TypeAlias = Iterable[torch.Generator]


@dataclass(frozen=True, slots=True)
class Recording:
    """The outputs of a function. `replay` recomputes them from the current content of its inputs.

    `scratch_bytes` is the memory that a replay uses in addition to its inputs and outputs.
    """

    outputs: Outputs
    replay: Callable[[], None]
    scratch_bytes: int = 0


def alike(outputs: Outputs) -> Outputs:
    """New memory like `outputs`."""
    return tuple(map(torch.empty_like, outputs))


Recorder: TypeAlias = Callable[..., Recording]
"""Records a function (`Recorded`), which may draw from the generators in the second argument.

A third argument (`Keep`) gives the memory for the outputs. By default, this memory is new.
"""


class CudaRecorder:
    """Captures CUDA graphs that share one pool of scratch memory.

    The graphs are replayed in any order. The content of the pool lasts only until the next replay.
    So each graph ends by copying its outputs out of the pool, and reads no input from the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._broken_reason: str | None = None
        self._open()

    def _open(self) -> None:
        """Start with a new stream and a new pool."""
        device = self._device
        self._stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):  # cuBLAS allocates its workspace for the stream now
            torch.ones(16, 16, device=device).mm(torch.ones(16, 16, device=device))
        self._first: torch.cuda.CUDAGraph | None = None  # holds the pool

    def __call__(self, function: Recorded, generators: Generators, keep: Keep = alike) -> Recording:
        if self._broken_reason is not None:
            raise RuntimeError(f"an earlier recording failed: {self._broken_reason}")
        try:
            return self._recorded(function, generators, keep)
        except _CaptureError as error:
            self._open()  # stream and pool of a failed capture cannot be used again
            try:
                self._recorded(self._trial, (), alike)
            except Exception:  # a new stream and pool cannot be used either
                self._broken_reason = reason_of(error.reason)
            raise error.reason from None

    def _trial(self) -> Outputs:
        """A function so simple that its capture fails only if every capture fails."""
        return (torch.ones(1, device=self._device),)

    def _recorded(self, function: Recorded, generators: Generators, keep: Keep) -> Recording:
        """Run the function twice on the capture's own stream, then capture it there."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()  # libraries choose their kernels, and compile them
            with _no_waiting():
                outputs = keep(function())
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._stream.device)
        bytes_before = torch.cuda.memory_allocated(self._stream.device)
        torch.cuda.reset_peak_memory_stats(self._stream.device)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            pool = None if self._first is None else self._first.pool()
            # The collector must not destroy graphs during a capture.
            with no_garbage_collection(), torch.cuda.graph(graph, pool, self._stream):
                for kept, output in zip(outputs, function(), strict=True):
                    kept.copy_(output)
        except Exception as error:
            torch.cuda.set_stream(current)
            raise _CaptureError(error) from error
        self._first = self._first or graph
        peak_bytes = torch.cuda.max_memory_allocated(self._stream.device)
        return Recording(outputs, graph.replay, scratch_bytes=peak_bytes - bytes_before)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Raise RuntimeError where the host waits for the device: a capture would fail there."""
    mode_before = torch.cuda.get_sync_debug_mode()
    try:
        _set_sync_debug_mode("error")
        yield
    finally:
        _set_sync_debug_mode(mode_before)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():  # torch warns once that the mode is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


class _CaptureError(Exception):
    """A capture that failed after it began."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason
