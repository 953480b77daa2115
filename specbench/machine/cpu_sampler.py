"""Sample the processor during a run: its clock, and the load of other programs."""

from collections.abc import Callable
from dataclasses import dataclass

from specbench.log.usage import CpuUse
from specbench.machine.sampler import Sampler, Spread


@dataclass(frozen=True, slots=True)
class CpuMoment:
    """The processor's counters at a moment. Times are seconds since an arbitrary start."""

    cores_s: float
    """Time of all cores together, working or idle."""
    work_s: float
    """Time in which the cores worked."""
    own_s: float
    """Time in which they worked for this process."""
    clock_mhz: float | None = None
    """The cores' mean clock in MHz, or None if the machine does not report it."""


class CpuSampler(Sampler):
    """Samples the processor once per second."""

    interval_s = 1.0

    def __init__(self, read: Callable[[], CpuMoment] | None = None) -> None:
        self._read = read or read_moment
        self._last = self._read()
        self._shares = Spread()
        self._clocks = Spread()

    def sample(self) -> None:
        """Add the times since the last sample."""
        last = self._last
        now = self._read()
        self._last = now
        if now.cores_s <= last.cores_s:
            return
        self._shares.add(share_of_others(last, now))
        self._clocks.add(now.clock_mhz or None)

    def describe(self) -> CpuUse | None:
        """The summary of the samples so far, or None without samples."""
        shares = self._shares.span()
        if shares is None:
            return None
        return CpuUse(self._shares.count, self.interval_s, shares, self._clocks.span())


def share_of_others(last: CpuMoment, now: CpuMoment) -> float:
    """The share, from 0 to 1, of the cores' time that other programs took between two moments."""
    cores_s = now.cores_s - last.cores_s
    if cores_s <= 0:
        return 0.0
    others_s = (now.work_s - last.work_s) - (now.own_s - last.own_s)
    return min(max(others_s / cores_s, 0.0), 1.0)


def read_moment() -> CpuMoment:
    """The counters now."""
    import psutil

    times = psutil.cpu_times()
    process_times = psutil.Process().cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # "user" and "nice" include the work for guests, which must not count twice.
    total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    clock = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return CpuMoment(
        cores_s=total_s,
        work_s=total_s - idle_s,
        own_s=process_times.user + process_times.system,
        clock_mhz=clock.current if clock and clock.current else None,
    )
