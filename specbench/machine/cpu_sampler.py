"""The load that other programs put on the processor during a run, and its clock, in samples.

Counters of the system and one thread. Must not know what the process does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Self

from specbench.log.machine import CpuUse, Span

INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class CpuMoment:
    """Seconds since some moment: of all cores, of their work, and of this process's part of it.

    `clock_mhz` is the mean clock of the cores; None if the machine does not tell.
    """

    cores_s: float
    work_s: float
    own_s: float
    clock_mhz: float | None = None


class CpuSampler:
    """Samples the processor each second. Use it as a context manager."""

    def __init__(self, read: Callable[[], CpuMoment] | None = None) -> None:
        self._read = read or read_moment
        self._end = Event()
        self._thread = Thread(target=self._sample_often, name="cpu-sampler", daemon=True)
        self._last = self._read()
        self._shares: list[float] = []
        self._clocks: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def sample(self) -> None:
        """Add the time since the last sample."""
        last, now = self._last, self._read()
        self._last = now
        cores_s = now.cores_s - last.cores_s
        if cores_s <= 0:
            return
        others_s = (now.work_s - last.work_s) - (now.own_s - last.own_s)
        self._shares.append(min(max(others_s / cores_s, 0.0), 1.0))
        if now.clock_mhz:
            self._clocks.append(now.clock_mhz)

    def describe(self) -> CpuUse | None:
        """The samples so far; None without any."""
        if not self._shares:
            return None
        clocks = _span(self._clocks) if self._clocks else None
        return CpuUse(len(self._shares), INTERVAL_S, _span(self._shares), clocks)

    def _sample_often(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self.sample()


def _span(values: Sequence[float]) -> Span:
    numbers = min(values), sum(values) / len(values), max(values)
    return Span(*(round(number, 4) for number in numbers))


def read_moment() -> CpuMoment:
    """The counters now."""
    import psutil

    times, own = psutil.cpu_times(), psutil.Process().cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    clock = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return CpuMoment(
        cores_s=total_s,
        work_s=total_s - idle_s,
        own_s=own.user + own.system,
        clock_mhz=clock.current if clock and clock.current else None,
    )
