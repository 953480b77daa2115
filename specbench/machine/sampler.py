"""Take samples in a thread during a run."""

from abc import ABC, abstractmethod
from threading import Event, Thread
from typing import Self

from specbench.log.usage import Span


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
        """End the sampling. Further calls do nothing."""
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
        self.count = 0
        self._total = 0.0
        self._lowest = float("inf")
        self._highest = float("-inf")

    def add(self, reading: float | None) -> None:
        """Add a number. None, for one that the machine did not report, is ignored."""
        if reading is not None:
            self.count += 1
            self._total += reading
            self._lowest = min(self._lowest, reading)
            self._highest = max(self._highest, reading)

    def span(self) -> Span | None:
        """The three numbers, rounded, or None if nothing was added."""
        if not self.count:
            return None
        mean = self._total / self.count
        return Span(
            min=round(float(self._lowest), 4),
            mean=round(float(mean), 4),
            max=round(float(self._highest), 4),
        )
