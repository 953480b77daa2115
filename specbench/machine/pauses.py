"""Pauses of the whole process: it was stopped, or the machine slept or gave its time to others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident

from specbench.machine.sampler import Sampler

LEAST_S = 0.2
"""Seconds from which a gap between two looks is a pause."""
_WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds of a clock that runs while the machine sleeps, and of the watched thread's work."""

    clock_s: float
    work_s: float


class PauseWatch(Sampler):
    """Looks at the clocks often. Where much time passes between two looks, in which the thread
    that made it hardly worked either, nothing of the process ran.

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
