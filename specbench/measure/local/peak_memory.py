"""Peak memory of a method on a CUDA device, as if no other method were loaded.

Counts the bytes that torch has allocated, less those that caches and graphs say they hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from specbench.types import Completion

if TYPE_CHECKING:
    from specbench.engine.target import Target


class MemoryLedger:
    """Bytes that each method holds: what stays allocated once it was built, and once it ran.

    That is its drafter with its caches. The target's weights and cache belong to every method,
    and the memory of graphs to those that replay them. On a CPU nothing is counted.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._held: Counter[str] = Counter()
        self._is_kept = target.device.type == "cuda"

    @contextmanager
    def holder(self, label: str) -> Iterator[None]:
        """Count what the block leaves allocated for this method."""
        before = self._num_bytes()
        try:
            yield
        finally:
            self._held[label] += self._num_bytes() - before

    def measure(self, label: str, complete: Callable[[], Completion]) -> Completion:
        """A completion with its peak memory, without what other methods hold."""
        if not self._is_kept:
            return complete()
        import torch

        execution, devices = self._target.execution, self._target.devices
        execution.used_bytes()  # forget those before
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        with self.holder(label):
            done = complete()
        others = sum(held for holder, held in self._held.items() if holder != label)
        unused = execution.buffer_bytes - execution.used_bytes()
        peak = sum(map(torch.cuda.max_memory_allocated, devices)) - others - unused
        return replace(done, peak_memory_bytes=peak)

    def _num_bytes(self) -> int:
        """Allocated bytes, without the target's cache and the graphs, which no method holds."""
        if not self._is_kept:
            return 0
        import torch

        cache, execution = self._target.cache, self._target.execution
        allocated = sum(map(torch.cuda.memory_allocated, self._target.devices))
        return allocated - cache.capacity * cache.bytes_per_token - execution.buffer_bytes
