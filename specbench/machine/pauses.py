"""Pauses of the whole process: it was stopped, or the machine slept or gave its time to others.

Clocks and one thread. Must not know what the process does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread, get_ident
from typing import Self

INTERVAL_S = 0.05
LEAST_S = 0.2
"""Seconds between two looks at the clocks, and the least of a pause."""
_WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds of a clock that runs while the machine sleeps, and of the watched thread's work."""

    clock_s: float
    work_s: float


class PauseWatch:
    """Looks at the clocks often. Where much time passes between two looks, in which the thread that
    opened it hardly worked either, nothing of the process ran.

    Use it as a context manager in the thread whose work is timed. A thread that only waits, for a
    GPU or other threads, lets the looks go on.
    """

    def __init__(self, read: Callable[[], Moment] | None = None) -> None:
        self._read = read or _clocks_of_this_thread()
        self._lock, self._end = Lock(), Event()
        self._thread = Thread(target=self._look_often, name="pause-watch", daemon=True)
        self._last = self._read()
        self._paused_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def take(self) -> float:
        """Seconds of pauses since the last call."""
        self.look()
        with self._lock:
            paused_s, self._paused_s = self._paused_s, 0.0
        return paused_s

    def look(self) -> None:
        """Compare the clocks with the last look."""
        with self._lock:
            last, self._last = self._last, self._read()
            gap_s = self._last.clock_s - last.clock_s - (self._last.work_s - last.work_s)
            if gap_s >= LEAST_S:
                self._paused_s += gap_s

    def _look_often(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self.look()


def _clocks_of_this_thread() -> Callable[[], Moment]:
    work = time.pthread_getcpuclockid(get_ident())
    return lambda: Moment(time.clock_gettime(_WITH_SLEEP), time.clock_gettime(work))
