"""Compute ratios of sums with their intervals, by resampling clusters.

The inputs are arrays of sums, one row per cluster. The bootstrap resamples whole clusters, since
the turns and passes of one sample depend on each other. Passes or runs (`units`) are a second
random effect: their variance is added to the bootstrap's.
"""

import math
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.estimates import Estimate, with_interval
from specbench.analysis.stats.variance import EXACT, Variance

NUM_RESAMPLES = 2000

_COUNTS_AT_ONCE = 4_000_000
"""The most counts that are turned into floats at once, to limit memory."""
_DRAWN_AT_ONCE = 2**15
"""The most clusters that are drawn at once, few enough for the processor's cache."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The number of resamples, and the seed of their random streams."""

    num_resamples: int = NUM_RESAMPLES
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """A ratio: prod(column sums of `top`) / prod(column sums of `bottom`). Entries are positive."""

    top: FloatArray
    """The sums of the numerator per cluster [clusters, k]."""

    bottom: FloatArray
    """The sums of the denominator per cluster [clusters, k]."""

    units: tuple[FloatArray, ...] = ()
    """The ratio's logarithm in each pass or run [units]; one array for each run or pool."""

    machine: Variance | None = EXACT
    """The variance that the machine adds to the logarithm, if there are no units."""

    @property
    def estimate(self) -> Estimate:
        """The ratio without an interval."""
        top_product = np.prod(self.top.sum(0))
        bottom_product = np.prod(self.bottom.sum(0))
        ratio = float(top_product / bottom_product)
        return Estimate(ratio, units=self.units, machine=self.machine)


class Draws:
    """Clusters that are drawn with replacement, the same for all numbers that are measured on them.

    The seed, the name of the stream and the number of clusters determine the draws. So methods on
    the same stream are paired, and different streams are independent. Draws are stored as counts, a
    byte each.
    """

    def __init__(self, bootstrap: Bootstrap, stream: str) -> None:
        self._num_resamples = bootstrap.num_resamples
        self._seed = [bootstrap.seed, crc32(stream.encode())]
        self._counts: dict[int, NDArray[np.uint8]] = {}

    def estimate(self, ratio: Ratio) -> Estimate:
        """Estimate the ratio prod(sums of top columns) / prod(sums of bottom columns).

        `ratio.top` and `ratio.bottom` [clusters, k] have a row of sums per cluster. A cluster is a
        group of answers that depend on each other. The interval comes from resamples. Their spread
        is widened by sqrt(n / (n - 1)) on the log scale, because resampling n clusters gives a
        variance with the divisor n. As clusters differ in weight, n is their effective number (Kish
        1965). There is no interval if n - 1, the degrees of freedom, is below SHOWN_DEGREES.
        """
        plain_estimate = ratio.estimate  # without an interval
        if len(ratio.top) < 2:
            return plain_estimate
        num_top_columns = ratio.top.shape[1]  # k
        columns = np.hstack([ratio.top, ratio.bottom])  # [clusters, 2 k]
        # the sum of each column in each resample [num_resamples, k]
        top_sums, bottom_sums = np.hsplit(self.sums(columns), [num_top_columns])
        resamples = top_sums.prod(1) / bottom_sums.prod(1)  # [num_resamples]
        num_effective = effective_number(columns)
        degrees = num_effective - 1  # degrees of freedom
        if degrees > 0:
            widening = math.sqrt(num_effective / degrees)
            resamples = plain_estimate.value * (resamples / plain_estimate.value) ** widening
        return with_interval(replace(plain_estimate, resamples=resamples, degrees=degrees))

    def sums(self, columns: FloatArray) -> FloatArray:
        """Add up each column over the drawn clusters, in each resample [num_resamples, k].

        `columns` are [clusters, k]; a cluster that a resample drew twice counts twice.
        """
        num_clusters = len(columns)
        if num_clusters not in self._counts:  # drawn once for each number of clusters
            self._counts[num_clusters] = self._draw(num_clusters)
        # how often each resample drew each cluster [num_resamples, clusters]
        counts = self._counts[num_clusters]
        # Counts become floats for some resamples (a chunk) at a time, to limit memory.
        chunk_size = max(1, _COUNTS_AT_ONCE // num_clusters)  # resamples
        sums_of_chunks = []  # for each chunk, the sums [resamples of the chunk, k]
        for start in range(0, self._num_resamples, chunk_size):
            counts_in_chunk = counts[start : start + chunk_size].astype(np.float64)
            sums_of_chunks.append(counts_in_chunk @ columns)
        return np.concatenate(sums_of_chunks)

    def _draw(self, num_clusters: int) -> NDArray[np.uint8]:
        """Draw how often each resample contains each cluster [num_resamples, num_clusters].

        A resample draws `num_clusters` clusters with replacement.
        """
        generator = np.random.default_rng(self._seed)
        counts = np.empty((self._num_resamples, num_clusters), dtype=np.uint8)
        chunk_size = max(1, _DRAWN_AT_ONCE // num_clusters)  # resamples that are drawn at once
        for start in range(0, self._num_resamples, chunk_size):
            chunk = counts[start : start + chunk_size]  # a view [resamples, clusters]
            # numbers of the drawn clusters, a row per resample [resamples, clusters]
            drawn = generator.integers(num_clusters, size=chunk.shape)
            # Cells of the chunk: cluster c of resample r is cell r * num_clusters + c.
            cells = drawn + np.arange(len(chunk))[:, None] * num_clusters
            chunk[:] = np.bincount(cells.ravel(), minlength=chunk.size).reshape(chunk.shape)
        return counts


def effective_number(columns: FloatArray) -> float:
    """Compute the number of clusters of equal weight that would be as informative as these.

    `columns` are the clusters' weights [clusters, columns].
    """
    shares = (columns / columns.sum(0)).mean(1)  # each cluster's mean share of a column [clusters]
    return float(1 / (shares**2).sum())
