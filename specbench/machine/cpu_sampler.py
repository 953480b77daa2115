"""The load that other programs put on the processor during a run, and its clock, in samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import astuple

from specbench.log.machine import CpuUse, Span
from specbench.machine.sampler import Sampler, Spread


@dataclass(frozen=True, slots=True)
class CpuMoment:
    """Seconds since some moment: of all cores, of their work, and of this process's part of it.

    `clock_mhz` is the mean clock of the cores; None if the machine does not tell.
    """

    cores_s: float
    work_s: float
    own_s: float
    clock_mhz: float | None = None


class CpuSampler(Sampler):
    """Samples the processor each second."""

    interval_s = 1.0

    def __init__(self, read: Callable[[], CpuMoment] | None = None) -> None:
        self._read = read or read_moment
        self._last = self._read()
        self._shares, self._clocks = Spread(), Spread()

    def sample(self) -> None:
        """Add the time since the last sample."""
        last, now = self._last, self._read()
        self._last = now
        cores_s = now.cores_s - last.cores_s
        if cores_s <= 0:
            return
        others_s = (now.work_s - last.work_s) - (now.own_s - last.own_s)
        self._shares.add(min(max(others_s / cores_s, 0.0), 1.0))
        self._clocks.add(now.clock_mhz or None)

    def describe(self) -> CpuUse | None:
        """The samples so far; None without any."""
        shares, clocks = _rounded(self._shares), _rounded(self._clocks)
        if shares is None:
            return None
        return CpuUse(self._shares.count, self.interval_s, shares, clocks)


def _rounded(values: Spread) -> Span | None:
    span = values.span()
    return span and Span(*(round(number, 4) for number in astuple(span)))


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
