"""Times of a step of the target, by rows and number of threads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

FASTER = 1.05
"""A number of threads is kept unless another is faster by this factor."""


def rounded_times(seconds: Mapping[int, float]) -> dict[str, float]:
    """Times by number of threads, as the header holds them."""
    return {str(num_threads): round(step_s, 6) for num_threads, step_s in seconds.items()}


class StepTimes(NamedTuple):
    """Seconds of a step of the target by rows and number of threads."""

    seconds: dict[int, dict[int, float]]

    def at(self, rows: float) -> float:
        """Seconds of a step over `rows` rows, with the fastest number of threads.

        Between measured numbers of rows, the times are interpolated linearly. The last segment is
        extended beyond the largest number.
        """
        # pairs of a number of rows and the seconds of its step
        points = [(size, min(by_threads.values())) for size, by_threads in self.seconds.items()]
        largest = points[-1][0]
        for (below, below_s), (above, above_s) in pairwise(points):
            if rows <= above or above == largest:
                rise_s = (above_s - below_s) * (rows - below) / (above - below)
                return below_s + rise_s
        return points[0][1]

    def threads_at(self, rows: float) -> int:
        """The best number of threads for `rows` rows, at the nearest measured number of rows."""
        nearest = min(self.seconds, key=lambda size: abs(size - rows))
        by_threads = self.seconds[nearest]
        return min(by_threads, key=by_threads.__getitem__)

    def for_header(self) -> dict[str, dict[str, float]]:
        """The times as the header holds them."""
        return {str(rows): rounded_times(by_threads) for rows, by_threads in self.seconds.items()}
