"""Measure the GPU memory of each method.

A method's peak is counted as if no other method were loaded. It is the most bytes that torch had
allocated, minus those of other methods and of graphs that the method did not replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from specbench.log.backend import HookTimes
from specbench.types import Completion

if TYPE_CHECKING:
    from specbench.engine.target import Target


class MemoryLedger:
    """Counts the GPU memory that each method holds after it was built, or has run.

    A method holds its drafter and the drafter's caches. The peak of every method also includes the
    target's weights and cache, and the graphs that the method replays. On a CPU nothing is counted.
    `hooks` has the seconds that building each method took, by label.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._held: Counter[str] = Counter()  # bytes that a method holds, by label
        self.hooks: dict[str, HookTimes] = {}

    @contextmanager
    def holder(self, label: str) -> Iterator[None]:
        """Count the bytes that the block leaves allocated as held by the method of this label."""
        bytes_before = self._num_bytes()
        try:
            yield
        finally:
            self._held[label] += self._num_bytes() - bytes_before

    def measure(self, label: str, complete: Callable[[], Completion]) -> Completion:
        """Complete a request on GPUs with the method of this label, and add the peak memory.

        The peak memory in bytes is summed over all GPUs. It leaves out the bytes that other methods
        hold, and those of CUDA graphs that this completion did not replay.
        """
        import torch

        execution = self._target.execution
        devices = self._target.devices
        # `used_bytes` returns the memory of the graphs replayed since its last call. This call
        # starts a new count.
        execution.used_bytes()
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        with self.holder(label):  # counts what stays allocated after the block
            completion = complete()
        peak_bytes = sum(map(torch.cuda.max_memory_allocated, devices))  # with all methods
        other_methods_bytes = sum(
            held_bytes for held_by, held_bytes in self._held.items() if held_by != label
        )
        # `buffer_bytes` are the inputs and outputs of all graphs. `used_bytes` are those of the
        # graphs that this completion replayed, with their scratch memory: a replay allocates none.
        unused_bytes = execution.buffer_bytes - execution.used_bytes()
        method_peak_bytes = peak_bytes - other_methods_bytes - unused_bytes
        return replace(completion, peak_memory_bytes=method_peak_bytes)

    def _num_bytes(self) -> int:
        """The bytes allocated on all GPUs, without the target's cache and graphs. 0 on a CPU.

        No method holds the cache and the graphs, and both grow while methods run.
        """
        if self._target.device.type != "cuda":
            return 0
        import torch

        cache, execution = self._target.cache, self._target.execution
        allocated_bytes = sum(map(torch.cuda.memory_allocated, self._target.devices))
        cache_bytes = cache.capacity * cache.bytes_per_token  # the capacity is in tokens
        return allocated_bytes - cache_bytes - execution.buffer_bytes
