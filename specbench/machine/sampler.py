"""Sampling beside a run, in a thread.

`CpuSampler` samples the load of other programs on the processor, and its clock. `PauseWatch`
finds pauses of the whole process: it was stopped, or the machine slept or gave its time to
others.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread, get_ident
from typing import Self

from specbench.log.usage import CpuUse, Span

LEAST_S = 0.2
"""Seconds from which a gap between two looks is a pause."""
_WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Sampler(ABC):
    """Calls `sample` every `interval_s` seconds while it is open, or between `start` and `stop`."""

    interval_s: float
    _thread: Thread | None = None

    @abstractmethod
    def sample(self) -> object:
        """Take one sample."""

    @property
    def is_over(self) -> bool:
        """True if there is nothing left to sample."""
        return False

    def start(self) -> None:
        """Sample in the background until `stop`."""
        self._end = Event()
        self._thread = Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling, however the run ends; may be called more than once."""
        if self._thread is not None:
            self._end.set()
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self.is_over and not self._end.wait(self.interval_s):
            self.sample()


class Spread:
    """Minimum, mean and maximum of the numbers that were added."""

    def __init__(self) -> None:
        self.count, self._total = 0, 0.0
        self._low, self._high = float("inf"), float("-inf")

    def add(self, value: float | None) -> None:
        """Add a number; None if the machine did not report it."""
        if value is not None:
            self.count += 1
            self._total += value
            self._low, self._high = min(self._low, value), max(self._high, value)

    def span(self) -> Span | None:
        """Rounded; None if nothing was added."""
        if not self.count:
            return None
        numbers = (self._low, self._total / self.count, self._high)
        return Span(*(round(float(number), 4) for number in numbers))


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
        shares = self._shares.span()
        if shares is None:
            return None
        return CpuUse(self._shares.count, self.interval_s, shares, self._clocks.span())


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


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds of a clock that runs while the machine sleeps, and of the watched thread's work."""

    clock_s: float
    work_s: float


class PauseWatch(Sampler):
    """Looks at the clocks often. If much time passes between two looks, and the watched thread
    hardly worked in it either, the whole process was paused.

    Use it in the thread whose work is timed. A thread that only waits, for a GPU or other
    threads, lets the looks go on.
    """

    interval_s = 0.05

    def __init__(self, read: Callable[[], Moment] | None = None) -> None:
        self._read = read or _clocks_of_this_thread()
        self._lock = Lock()
        self._last = self._read()
        self._paused_s = 0.0

    def take(self) -> float:
        """Seconds of pauses since the last call."""
        self.sample()
        with self._lock:
            paused_s, self._paused_s = self._paused_s, 0.0
        return paused_s

    def sample(self) -> None:
        """Compare the clocks with the last look."""
        with self._lock:
            last, self._last = self._last, self._read()
            gap_s = self._last.clock_s - last.clock_s - (self._last.work_s - last.work_s)
            if gap_s >= LEAST_S:
                self._paused_s += gap_s


def _clocks_of_this_thread() -> Callable[[], Moment]:
    work = time.pthread_getcpuclockid(get_ident())
    return lambda: Moment(time.clock_gettime(_WITH_SLEEP), time.clock_gettime(work))
