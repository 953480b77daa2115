"""Times of the target's steps, by number of rows and of threads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

FASTER = 1.05
"""The number of threads is kept unless another number is faster by this factor."""


def rounded_times(seconds: Mapping[int, float]) -> dict[str, float]:
    """Round seconds to microseconds, for the header of a run. Numbers of threads become texts."""
    return {str(num_threads): round(time_s, 6) for num_threads, time_s in seconds.items()}


class StepTimes(NamedTuple):
    """Seconds of the target's steps."""

    seconds: dict[int, dict[int, float]]
    """Seconds of a step by its number of rows, then by the number of threads."""

    def at(self, rows: float) -> float:
        """Seconds of a step over `rows` rows, with the fastest number of threads.

        Between measured numbers of rows, the times are interpolated linearly. The last segment is
        extended beyond the largest number.
        """
        sizes = [*self.seconds]  # measured numbers of rows, the smallest first
        for below, above in pairwise(sizes):
            is_last_segment = above == sizes[-1]
            if rows <= above or is_last_segment:
                # t(rows) = t(below) + (t(above) - t(below)) * (rows - below) / (above - below)
                below_s = self._fastest_s(below)
                rise_s = self._fastest_s(above) - below_s
                width = above - below
                return below_s + rise_s * (rows - below) / width
        return self._fastest_s(sizes[0])  # a single size was measured

    def _fastest_s(self, size: int) -> float:
        """Seconds of a step of a measured size, with the fastest number of threads."""
        step_s = self.seconds[size]  # by number of threads
        return min(step_s.values())

    def threads_at(self, rows: float) -> int:
        """The fastest number of threads at the measured number of rows nearest to `rows`."""
        nearest_size = min(self.seconds, key=lambda size: abs(size - rows))
        step_s = self.seconds[nearest_size]  # by number of threads
        return min(step_s, key=step_s.__getitem__)

    def for_header(self) -> dict[str, dict[str, float]]:
        """Round all times for the header of a run. Numbers of rows and threads become texts."""
        return {str(size): rounded_times(step_s) for size, step_s in self.seconds.items()}
