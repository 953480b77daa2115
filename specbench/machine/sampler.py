"""Sampling beside a run, in a thread: what all samplers of the machine share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import Event, Thread
from typing import Self

from specbench.log.machine import Span


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
        """Add a number; None is what the machine did not say."""
        if value is not None:
            self.count += 1
            self._total += value
            self._low, self._high = min(self._low, value), max(self._high, value)

    def span(self) -> Span | None:
        """None if nothing was added."""
        if not self.count:
            return None
        return Span(min=self._low, mean=self._total / self.count, max=self._high)
