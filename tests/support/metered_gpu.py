"""A GPU whose energy counter advances in ticks. The test sets its clock."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.machine.energy import EnergyMeter, TickSampler
from specbench.machine.nvml import Card
from specbench.measure.local import energy
from tests.machine.fake_nvml import FakeNvml

IDLE_W = 70.0
BUSY_W = 400.0
COUNTER = "nvmlDeviceGetTotalEnergyConsumption"


class MeteredGpu:
    """A run's energy meter, whose counter advances every `tenths` tenths of a second.

    A tenth of a second at 400 W is 40 J. The counter is sampled by `passes`, not by a thread.
    `answers` are NVML's.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tenths: int = 1, **answers: Any) -> None:
        self.nvml = FakeNvml(**answers)
        self.is_still = False
        self._num_tenths = 0
        self._tenths_per_tick = tenths
        self._uncounted_j = 0.0
        self._samplers: list[TickSampler] = []
        samplers = self._samplers

        class SampledByHand(TickSampler):
            def start(self) -> None:
                samplers.append(self)

            def stop(self) -> None:
                samplers.remove(self)

        def idle(seconds: float) -> None:
            self.passes(seconds, IDLE_W)

        monkeypatch.setattr(energy, "TickSampler", SampledByHand)
        monkeypatch.setattr(energy, "energy_meter", self._meter)
        monkeypatch.setattr(energy, "outer_clock", lambda: self._num_tenths / 10)
        monkeypatch.setattr(energy, "time", SimpleNamespace(sleep=idle))

    @contextmanager
    def _meter(self, *, has_gpu: bool) -> Iterator[EnergyMeter]:
        yield EnergyMeter([Card(self.nvml, "card")], Path(os.devnull))

    def passes(self, seconds: float, watts: float = BUSY_W) -> None:
        """Let time pass, in tenths of a second."""
        for _ in range(round(10 * seconds)):
            self._num_tenths += 1
            self._uncounted_j += watts / 10
            if not self.is_still and self._num_tenths % self._tenths_per_tick == 0:
                self.nvml.answers[COUNTER] += round(1e3 * self._uncounted_j)
                self._uncounted_j = 0.0
            for sampler in self._samplers:
                sampler.sample()
