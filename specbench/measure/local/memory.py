"""The engine's memory: what each method holds of a GPU, and the bytes that steps read.

The peak of a method on a GPU is as if no other method were loaded: the bytes that torch has
allocated, less those that caches and graphs say they hold. `analysis.roofline` computes the
limit of a run from the bytes that its models read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING

from specbench.log.backend import RooflineHeader
from specbench.types import Completion, Record

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


class MemoryLedger:
    """Bytes that each method holds: what stays allocated once it was built, and once it ran.

    That is its drafter with its caches. The target's weights and cache belong to every method,
    and the memory of graphs to those that replay them. On a CPU nothing is counted.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._held: Counter[str] = Counter()

    @contextmanager
    def holder(self, label: str) -> Iterator[None]:
        """Count what the block leaves allocated for this method."""
        before = self._num_bytes()
        try:
            yield
        finally:
            self._held[label] += self._num_bytes() - before

    def measure(self, label: str, complete: Callable[[], Completion]) -> Completion:
        """A completion on GPUs with its peak memory, without what other methods hold."""
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
        if self._target.device.type != "cuda":
            return 0
        import torch

        cache, execution = self._target.cache, self._target.execution
        allocated = sum(map(torch.cuda.memory_allocated, self._target.devices))
        return allocated - cache.capacity * cache.bytes_per_token - execution.buffer_bytes


def measure_traffic(target: Target) -> RooflineHeader:
    """Measure the memory's bandwidth, and count the bytes that a step of the target reads.

    For a mixture of experts, the bytes count all of them, and a row reads those it chooses.
    """
    from specbench.engine.layers.weights import weight_bytes
    from specbench.engine.model_parts import pass_bytes
    from specbench.machine.bandwidth import bandwidth, block_bytes, cache_bytes

    config, modules = target.config, target.model.named_modules()
    num_experts = max(getattr(config, name, None) or 1 for name in _EXPERTS)
    num_chosen = getattr(config, "num_experts_per_tok", None) or num_experts
    if not isinstance(num_chosen, int):  # a number for each layer
        num_chosen = mean(num_chosen)
    experts = weight_bytes(*(module for name, module in modules if name.endswith(".experts")))
    weights = pass_bytes(target.model)
    block = block_bytes(target.device, weights)
    return RooflineHeader(
        bandwidth_bytes_per_s=bandwidth(target.device, block),
        block_bytes=block,
        cache_bytes=cache_bytes(target.device),
        target_bytes=weights,
        kv_bytes_per_token=target.cache.bytes_per_token,
        is_mixture_of_experts=num_experts > 1,
        unread_bytes=round(experts * (1 - num_chosen / num_experts)),
    )


def draft_bytes(drafters: Mapping[str, Drafter], records: Sequence[Record]) -> dict[str, float]:
    """Bytes that each method's mean draft reads, over the steps of its records, if it has any."""
    found = {}
    for label, drafter in drafters.items():
        nodes = [n for record in records if record.key.method == label for n in record.num_nodes]
        with suppress(Exception):  # any plug-in; its samples are worth more than its limit
            if nodes:
                found[label] = float(drafter.bytes_read(sum(nodes) / len(nodes)))
    return found
