"""A completion's peak memory counts its own method only, with a fake allocator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.measure.local.peak_memory import MemoryLedger
from specbench.types import Completion, Step

TARGET, CACHE = 1000, 100


@dataclass
class FakeGpu:
    """A device's allocated bytes, with a target on it and a cache for it."""

    allocated: int = TARGET + CACHE
    peak: int = 0
    buffer_bytes: int = 0  # of recordings
    used: int = 0
    cache: Any = field(default_factory=lambda: SimpleNamespace(capacity=CACHE, bytes_per_token=1))

    @property
    def target(self) -> Any:
        return SimpleNamespace(
            device=torch.device("cuda"),
            devices=(torch.device("cuda"),),
            cache=self.cache,
            execution=self,
        )

    def take(self, num_bytes: int) -> None:
        self.allocated += num_bytes
        self.peak = max(self.peak, self.allocated)

    def work(self, num_bytes: int) -> None:
        self.take(num_bytes)
        self.take(-num_bytes)

    def record(self, buffers: int) -> None:
        self.take(buffers)
        self.buffer_bytes += buffers

    def reset_peak(self) -> None:
        self.peak = self.allocated

    def used_bytes(self) -> int:
        used, self.used = self.used, 0
        return used


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: fake.allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: fake.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: fake.reset_peak())
    return fake


@pytest.fixture
def ledger(gpu: FakeGpu) -> MemoryLedger:
    """The memory ledger of a small and a large drafter."""
    ledger = MemoryLedger(gpu.target)
    for label, num_bytes in (("small", 10), ("large", 500)):
        with ledger.holder(label):
            gpu.take(num_bytes)
    return ledger


def peak(ledger: MemoryLedger, label: str, work: Callable[[], None]) -> int:
    def complete() -> Completion:
        work()
        return Completion((1, 2), "budget", (Step(1, 1),), 0.1, 0.2)

    found = ledger.measure(label, complete).peak_memory_bytes
    assert found is not None
    return found


def test_a_peak_is_without_the_drafters_of_other_methods(
    gpu: FakeGpu, ledger: MemoryLedger
) -> None:
    assert peak(ledger, "small", lambda: gpu.work(7)) == TARGET + CACHE + 10 + 7
    assert peak(ledger, "large", lambda: gpu.work(3)) == TARGET + CACHE + 500 + 3


def test_a_cache_that_a_drafter_grows_is_its_own(gpu: FakeGpu, ledger: MemoryLedger) -> None:
    assert peak(ledger, "large", lambda: gpu.take(40)) == TARGET + CACHE + 540
    assert peak(ledger, "small", lambda: None) == TARGET + CACHE + 10
    assert peak(ledger, "large", lambda: None) == TARGET + CACHE + 540


def test_the_targets_cache_counts_for_every_method(gpu: FakeGpu, ledger: MemoryLedger) -> None:
    def grow() -> None:
        gpu.take(60)
        gpu.cache.capacity += 60

    assert peak(ledger, "large", grow) == TARGET + CACHE + 60 + 500
    assert peak(ledger, "small", lambda: None) == TARGET + CACHE + 60 + 10


def test_recordings_count_for_the_methods_that_replay_them(
    gpu: FakeGpu, ledger: MemoryLedger
) -> None:
    def first() -> None:
        gpu.record(80)
        gpu.used = 80 + 9  # buffers and scratch memory

    def second() -> None:
        gpu.used = 30 + 4

    assert peak(ledger, "large", first) == TARGET + CACHE + 500 + 89
    assert peak(ledger, "small", second) == TARGET + CACHE + 10 + 34
    gpu.used = 80  # by whoever came in between
    assert peak(ledger, "small", lambda: None) == TARGET + CACHE + 10


def test_on_a_cpu_nothing_is_counted() -> None:
    ledger = MemoryLedger(SimpleNamespace(device=torch.device("cpu")))  # type: ignore[arg-type]
    with ledger.holder("pld"):
        pass
    done = Completion((1, 2), "budget", (Step(1, 1),), 0.1, 0.2)
    assert ledger.measure("pld", lambda: done) is done
