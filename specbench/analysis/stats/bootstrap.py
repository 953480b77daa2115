"""Ratios of sums with their bootstrap intervals.

Knows arrays of per-cluster sums. Knows nothing of methods, tasks or records. The bootstrap
resamples whole clusters, since the turns and repeats of one sample depend on each other.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]

NUM_RESAMPLES = 2000
LEVEL = 0.95
MIN_DEGREES = 4
"""Degrees of freedom that an interval needs: about six samples of different lengths.

With fewer, intervals miss the truth more often than they claim (simulated).
"""
_CHUNK = 4_000_000
"""Number of counts turned into floats at once, which bounds the memory."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, both ends included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Missing:
    """A missing number, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval, or without one if there are too few clusters.

    `resamples` are the bootstrap's values of the number and `degrees` its degrees of freedom. Both
    serve to combine estimates, as into a mean over tasks.
    """

    value: float
    interval: Interval | None = None
    resamples: FloatArray | None = field(default=None, repr=False, compare=False)
    degrees: float = field(default=0.0, repr=False, compare=False)


Value: TypeAlias = Estimate | Missing


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Number of resamples and their seed."""

    num_resamples: int = NUM_RESAMPLES
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """prod(column sums of `top`) / prod(column sums of `bottom`).

    Both are [clusters, k], and all entries are positive.
    """

    top: FloatArray
    bottom: FloatArray

    @property
    def estimate(self) -> Estimate:
        """The ratio without an interval."""
        return Estimate(float(np.prod(self.top.sum(0)) / np.prod(self.bottom.sum(0))))


class Draws:
    """Clusters drawn with replacement, the same ones for all numbers measured on them.

    Seed, stream and number of clusters fix the draws: methods measured on one stream are paired,
    and different streams are independent. Draws are kept as counts, a byte each.
    """

    def __init__(self, bootstrap: Bootstrap, stream: str) -> None:
        self._num_resamples = bootstrap.num_resamples
        self._seed = [bootstrap.seed, crc32(stream.encode())]
        self._counts: dict[int, NDArray[np.uint8]] = {}

    def estimates(self, ratios: Mapping[str, Ratio]) -> dict[str, Estimate]:
        """The ratios with their intervals. Ratios of equally many clusters share the resampling.

        The spread of the resamples is widened by sqrt(n / (n - 1)) on the log scale, since drawing
        from n clusters has the variance of dividing by n. As clusters differ in weight, n is their
        effective number (Kish 1965): 1 / sum of squared shares.
        """
        by_clusters: dict[int, dict[str, Ratio]] = {}
        for name, ratio in ratios.items():
            by_clusters.setdefault(len(ratio.top), {})[name] = ratio
        found: dict[str, Estimate] = {}
        for num_clusters, group in by_clusters.items():
            if num_clusters < 2:
                found |= {name: ratio.estimate for name, ratio in group.items()}
                continue
            columns = [part for ratio in group.values() for part in (ratio.top, ratio.bottom)]
            sums = self.sums(np.hstack(columns))
            for name, ratio in group.items():
                of_ratio, sums = np.split(sums, [2 * ratio.top.shape[1]], axis=1)
                found[name] = _with_interval(ratio, of_ratio)
        return found

    def sums(self, values: FloatArray) -> FloatArray:
        """Column sums of the drawn clusters: [clusters, k] -> [num_resamples, k]."""
        num_clusters = len(values)
        if num_clusters not in self._counts:
            self._counts[num_clusters] = self._draw(num_clusters)
        counts = self._counts[num_clusters]
        rows = max(1, _CHUNK // num_clusters)
        starts = range(0, self._num_resamples, rows)
        return np.concatenate([counts[i : i + rows].astype(np.float64) @ values for i in starts])

    def _draw(self, num_clusters: int) -> NDArray[np.uint8]:
        """Counts of each cluster in each resample: [num_resamples, num_clusters]."""
        generator = np.random.default_rng(self._seed)
        counts = np.empty((self._num_resamples, num_clusters), dtype=np.uint8)
        for row in counts:
            drawn = generator.integers(num_clusters, size=num_clusters)
            row[:] = np.bincount(drawn, minlength=num_clusters)
        return counts


def _with_interval(ratio: Ratio, sums: FloatArray) -> Estimate:
    """`sums`: [num_resamples, columns of top and bottom]."""
    num_columns = ratio.top.shape[1]
    effective = effective_number(np.hstack([ratio.top, ratio.bottom]))
    degrees = effective - 1
    value = ratio.estimate.value
    resamples = sums[:, :num_columns].prod(1) / sums[:, num_columns:].prod(1)
    if degrees > 0:
        resamples = value * (resamples / value) ** math.sqrt(effective / degrees)
    return Estimate(value, interval(resamples, degrees), resamples, degrees)


def effective_number(columns: FloatArray) -> float:
    """The number of clusters of equal weight as informative as these [clusters, columns]."""
    shares = (columns / columns.sum(0)).mean(1)
    return float(1 / (shares**2).sum())


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The arithmetic mean of independent estimates (made on different streams)."""
    value = sum(estimate.value for estimate in estimates) / len(estimates)
    drawn = [estimate.resamples for estimate in estimates if estimate.resamples is not None]
    if len(drawn) < len(estimates):
        return Estimate(value)
    resamples = np.mean(drawn, axis=0)
    degrees = _combined_degrees(drawn, [estimate.degrees for estimate in estimates])
    return Estimate(value, interval(resamples, degrees), resamples, degrees)


def quotient(top: Estimate, bottom: Estimate) -> Estimate:
    """`top` / `bottom`, paired if both were made on the same stream."""
    value = top.value / bottom.value
    if top.resamples is None or bottom.resamples is None:
        return Estimate(value)
    resamples = top.resamples / bottom.resamples
    degrees = min(top.degrees, bottom.degrees)
    return Estimate(value, interval(resamples, degrees), resamples, degrees)


def interval(resamples: FloatArray, degrees: float) -> Interval | None:
    """The expanded percentile interval (Hesterberg 2015, "What Teachers Should Know about the
    Bootstrap", section 5.3).

    The plain percentile interval of few clusters is too narrow by the factor between a normal's and
    a t-distribution's quantile. None with too few degrees of freedom.
    """
    if degrees < MIN_DEGREES:
        return None
    from scipy.special import ndtr, stdtrit

    tail = float(ndtr(-stdtrit(degrees, (1 + LEVEL) / 2)))
    low, high = np.quantile(resamples, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _combined_degrees(drawn: Sequence[FloatArray], degrees: Sequence[float]) -> float:
    """Welch and Satterthwaite's degrees of freedom for a mean of independent parts."""
    variances = np.array([resamples.var() for resamples in drawn])
    if not variances.any():
        return float(sum(degrees))
    return float(variances.sum() ** 2 / (variances**2 / np.array(degrees)).sum())
