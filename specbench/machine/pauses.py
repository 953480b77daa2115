"""Notice pauses of the whole process, as when it is stopped or the machine sleeps."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident

from specbench.machine.sampler import Sampler

LEAST_PAUSE_S = 0.2
"""A gap between two samples counts as a pause if it has this many seconds or more."""
_WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that keeps running while the machine sleeps, if the system has one."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The clocks' readings at a sample."""

    clock_s: float
    """Seconds of a clock that runs while the machine sleeps."""
    work_s: float
    """CPU seconds of the watched thread."""


class PauseWatch(Sampler):
    """Samples the clocks often. If much time passes between two samples, and the watched thread
    hardly worked during it, the whole process was paused.

    Use it in the thread whose work is timed. A thread that only waits, for a GPU or other
    threads, does not hold up the samples.
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
            paused_s = self._paused_s
            self._paused_s = 0.0
        return paused_s

    def sample(self) -> None:
        """Compare the clocks with the last sample."""
        with self._lock:
            last = self._last
            now = self._read()
            self._last = now
            work_s = now.work_s - last.work_s
            gap_s = now.clock_s - last.clock_s - work_s
            if gap_s >= LEAST_PAUSE_S:
                self._paused_s += gap_s


def _clocks_of_this_thread() -> Callable[[], Moment]:
    work = time.pthread_getcpuclockid(get_ident())
    return lambda: Moment(time.clock_gettime(_WITH_SLEEP), time.clock_gettime(work))
