"""The memory of a GPU that each method holds.

The peak of a method is counted as if no other method were loaded: the bytes that torch has
allocated, less the bytes of other methods and of graphs that the method did not replay.
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
    """Bytes that each method holds: what stays allocated after it was built and after it ran.

    It holds its drafter with its caches. The target's weights and cache count for every method,
    the memory of a graph for the methods that replay it. On a CPU nothing is counted. `hooks` has
    the seconds that building each method took.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._held: Counter[str] = Counter()
        self.hooks: dict[str, HookTimes] = {}

    @contextmanager
    def holder(self, label: str) -> Iterator[None]:
        """Count the bytes that the block leaves allocated for this method."""
        before = self._num_bytes()
        try:
            yield
        finally:
            self._held[label] += self._num_bytes() - before

    def measure(self, label: str, complete: Callable[[], Completion]) -> Completion:
        """The completion that `complete` makes on GPUs, with its peak memory in bytes.

        The peak is summed over all GPUs, without what other methods hold (`_held`, bytes by label)
        and without the memory of graphs that this completion did not use. `label` is the method's
        label.
        """
        import torch

        execution = self._target.execution
        devices = self._target.devices
        execution.used_bytes()  # counts since its last call: forget earlier completions
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        with self.holder(label):  # what stays allocated after the block is the method's
            completion = complete()
        peak_bytes = sum(map(torch.cuda.max_memory_allocated, devices))  # with all methods
        other_methods_bytes = sum(
            held_bytes for holder, held_bytes in self._held.items() if holder != label
        )
        # Of all graphs' memory, what graphs that this completion did not replay hold.
        unused_bytes = execution.buffer_bytes - execution.used_bytes()
        method_peak_bytes = peak_bytes - other_methods_bytes - unused_bytes
        return replace(completion, peak_memory_bytes=method_peak_bytes)

    def _num_bytes(self) -> int:
        """Allocated bytes, without the target's cache and the graphs, which no method holds."""
        if self._target.device.type != "cuda":
            return 0
        import torch

        cache = self._target.cache
        execution = self._target.execution
        allocated = sum(map(torch.cuda.memory_allocated, self._target.devices))
        return allocated - cache.capacity * cache.bytes_per_token - execution.buffer_bytes
