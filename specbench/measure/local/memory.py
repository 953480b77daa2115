"""The engine's memory: what each method holds of a GPU, its weights, and the bytes of steps.

The peak of a method on a GPU is as if no other method were loaded: the bytes that torch has
allocated, less those that caches and graphs say they hold. `analysis.costs` computes the
limit of a run from the bytes that its models read.

A fingerprint of the target's weights is computed where they are, as loaded and at the end:
sums of integers that depend on each number's place, so that they are exact on every device. It
finds weights that stay changed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from statistics import mean
from typing import TYPE_CHECKING

from specbench.log.backend import HookTimes, RooflineHeader, WeightsPrint
from specbench.measure.base import outer_clock
from specbench.types import Completion, Record

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
CHUNK = 2**20
"""Integers summed at once: their wide copies need 16 MB."""
LEAST_BYTES, LEAST_S, SHARE = 2**25, 0.1, 0.01
"""A fingerprint reads at least these bytes. Beyond them it takes at most these seconds, or this
share of the time of the loading or of the run.
"""
_FACTOR = 0x9E3779B97F4A7C15 - 2**64


class MemoryLedger:
    """Bytes that each method holds: what stays allocated once it was built, and once it ran.

    That is its drafter with its caches. The target's weights and cache belong to every method,
    and the memory of graphs to those that replay them. On a CPU nothing is counted. `hooks` has the
    seconds that building each method took.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._held: Counter[str] = Counter()
        self.hooks: dict[str, HookTimes] = {}

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


class Fingerprint:
    """The fingerprint of a model as loaded: of all weights, or of a sample if time is short."""

    def __init__(self, model: nn.Module, *, load_s: float = 0.0, seed: int = 0) -> None:
        self._model, self._seconds = model, 0.0
        self._sizes = [part.nbytes for part in _parts(model)]
        self._order = [*range(len(self._sizes))]
        random.Random(seed).shuffle(self._order)
        self._at_load = self._sums(LEAST_S + SHARE * load_s, len(self._order))

    def compared(self, run_s: float) -> WeightsPrint:
        """The fingerprint then and now, after a run of `run_s` seconds."""
        limit_s = max(LEAST_S, SHARE * run_s - self._seconds)
        now = self._sums(limit_s, len(self._at_load))
        share = sum(self._sizes[i] for i in self._order[: len(now)]) / sum(self._sizes)
        at_load, at_end = (
            sha256(repr(sums).encode()).hexdigest()[:16]
            for sums in (self._at_load[: len(now)], now)
        )
        skipped = tuple(name for name, one in self._model.named_parameters() if one.is_meta)
        return WeightsPrint(at_load, at_end, round(share, 4), round(self._seconds, 4), skipped)

    def _sums(self, limit_s: float, most: int) -> list[int]:
        """Sums of the parts in their order, until the time is over."""
        import torch

        began, sums, num_bytes = outer_clock(), list[int](), 0
        parts = _parts(self._model)
        factors: dict[torch.device, Tensor] = {}
        for i in self._order[:most]:
            if num_bytes >= LEAST_BYTES and outer_clock() - began > limit_s:
                break
            num_bytes += self._sizes[i]
            numbers = parts[i] if i < len(parts) else torch.tensor([-1])
            if numbers.device not in factors:
                places = torch.arange(1, CHUNK + 1, device=numbers.device)
                factors[numbers.device] = places * _FACTOR | 1
            wide = numbers.long() * factors[numbers.device][: len(numbers)]
            sums.append(int(wide.sum()))
        self._seconds += outer_clock() - began
        return sums


def _parts(model: nn.Module) -> list[Tensor]:
    """The memory of the weights as integers, at most `CHUNK` of them in a part.

    Each is there once: fused layers are views of one tensor.
    """
    import torch

    from specbench.engine.layers.weights import stored_tensors

    found: dict[int, Tensor] = {}
    for tensor in stored_tensors(model):
        if not tensor.is_meta and tensor.nbytes:
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            raw.set_(tensor.untyped_storage())
            is_whole = len(raw) % 4 == 0 and raw.data_ptr() % 4 == 0
            found.setdefault(raw.data_ptr(), raw.view(torch.int32) if is_whole else raw)
    return [part for numbers in found.values() for part in numbers.split(CHUNK)]
