"""Ratios of sums with their intervals.

Takes arrays of sums per cluster. The bootstrap resamples whole clusters, since the turns and
passes of one sample depend on each other. Passes or runs (`units`) are a second random effect:
their variance is added to the bootstrap's.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.stats import MIN_DEGREES
from specbench.analysis.stats.arrays import FloatArray as FloatArray

NUM_RESAMPLES = 2000
LEVEL = 0.95
_CHUNK = 4_000_000
"""Number of counts turned into floats at once, which bounds the memory."""
PROMPTS_ONLY = "prompts only; machine variance not estimated"
"""The label of every interval of one pass."""


class Variance(NamedTuple):
    """A variance of a logarithm, with its degrees of freedom."""

    value: float
    degrees: float


EXACT = Variance(0.0, math.inf)
"""The variance of a number that is the same on every machine at all times."""


def of_mean(logs: FloatArray) -> Variance | None:
    """The variance of the mean of these logarithms [units]; NaN stands for an unknown one.

    None with fewer than two.
    """
    known = logs[np.isfinite(logs)]
    if len(known) < 2:
        return None
    return Variance(float(known.var(ddof=1)) / len(known), len(known) - 1)


def total(parts: Iterable[Variance]) -> Variance:
    """The sum of independent variances, with the degrees of Welch and Satterthwaite (1946)."""
    known = [part for part in parts if part.value > 0]
    value = math.fsum(part.value for part in known)
    inverse = math.fsum((part.value / value) ** 2 / part.degrees for part in known)
    return Variance(value, 1 / inverse if inverse else math.inf)


def of_groups(groups: Sequence[FloatArray]) -> Variance | None:
    """The variance that independent groups of units add; None if one has fewer than two."""
    parts = [of_mean(group) for group in groups]
    known = [part for part in parts if part is not None]
    return total(known) if parts and len(known) == len(parts) else None


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

    `resamples` are the bootstrap's values of the number and `degrees` its degrees of freedom.
    `units` are the number's logarithms in each pass or run [units], an array for each run or
    pool that it depends on. All serve to combine estimates, as into a mean over tasks.
    `machine` is the variance that passes or runs add to the logarithm; None if it is unknown,
    as after one pass.
    """

    value: float
    interval: Interval | None = None
    resamples: FloatArray | None = field(default=None, repr=False, compare=False)
    degrees: float = field(default=0.0, repr=False, compare=False)
    units: tuple[FloatArray, ...] = field(default=(), repr=False, compare=False)
    machine: Variance | None = field(default=EXACT, repr=False, compare=False)

    @property
    def prompts(self) -> Variance | None:
        """The variance of the logarithm from the choice of prompts; None if it is unknown."""
        if self.resamples is None or self.degrees <= 0:
            return None
        return Variance(float(np.log(self.resamples).var()), self.degrees)

    @property
    def variance(self) -> Variance | None:
        """The variance of the logarithm from prompts and machine; None if either is unknown."""
        prompts = self.prompts
        if prompts is None or self.machine is None:
            return None
        return total([prompts, self.machine])


Value: TypeAlias = Estimate | Missing


def without_spread(value: float) -> Estimate:
    """A number that is the same for all prompts and on every machine."""
    return Estimate(value, resamples=np.full(1, value), degrees=math.inf)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Number of resamples and their seed."""

    num_resamples: int = NUM_RESAMPLES
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """prod(column sums of `top`) / prod(column sums of `bottom`).

    Both are [clusters, k], and all entries are positive. `units` are as in `Estimate`; without
    them, `machine` is the variance that the machine adds.
    """

    top: FloatArray
    bottom: FloatArray
    units: tuple[FloatArray, ...] = ()
    machine: Variance | None = EXACT

    @property
    def estimate(self) -> Estimate:
        """The ratio without an interval."""
        value = float(np.prod(self.top.sum(0)) / np.prod(self.bottom.sum(0)))
        return Estimate(value, units=self.units, machine=self.machine)


class Draws:
    """Clusters drawn with replacement, the same ones for all numbers measured on them.

    Seed, stream and number of clusters fix the draws: methods measured on one stream are
    paired, and different streams are independent. Draws are kept as counts, a byte each.
    """

    def __init__(self, bootstrap: Bootstrap, stream: str) -> None:
        self._num_resamples = bootstrap.num_resamples
        self._seed = [bootstrap.seed, crc32(stream.encode())]
        self._counts: dict[int, NDArray[np.uint8]] = {}

    def estimate(self, ratio: Ratio) -> Estimate:
        """The ratio with its interval.

        The spread of the resamples is widened by sqrt(n / (n - 1)) on the log scale, since
        drawing from n clusters has the variance of dividing by n. As clusters differ in
        weight, n is their effective number (Kish 1965): 1 / sum of squared shares.
        """
        if len(ratio.top) < 2:
            return ratio.estimate
        parts = np.hstack([ratio.top, ratio.bottom])
        top, bottom = np.hsplit(self.sums(parts), [ratio.top.shape[1]])
        effective = effective_number(parts)
        degrees = effective - 1
        value = ratio.estimate.value
        resamples = top.prod(1) / bottom.prod(1)
        if degrees > 0:
            resamples = value * (resamples / value) ** math.sqrt(effective / degrees)
        return with_interval(replace(ratio.estimate, resamples=resamples, degrees=degrees))

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


def with_interval(found: Estimate) -> Estimate:
    """A number with its interval: over prompts alone, or over prompts and units if there are two.

    Without units, the interval leaves out the variance that the machine adds.
    """
    if found.resamples is None:
        return found
    if (of_units := of_groups(found.units)) is not None:
        return with_machine(found, of_units)
    return replace(found, interval=interval(found.resamples, found.degrees))


def with_machine(found: Estimate, machine: Variance | None) -> Estimate:
    """The number with this variance of the machine, in its interval as well."""
    if machine is None or not found.units:
        return found
    found = replace(found, machine=machine, interval=None)
    if (variance := found.variance) is None or found.degrees < MIN_DEGREES:
        return found
    # log value +/- t * sqrt(variance of prompts + variance of units)
    half = quantile(variance.degrees) * math.sqrt(variance.value)
    ends = Interval(found.value * math.exp(-half), found.value * math.exp(half))
    return replace(found, interval=ends)


def quantile(degrees: float, end: float = (1 + LEVEL) / 2) -> float:
    """Student's t, by default at an interval's upper end; the normal's with infinite degrees."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(degrees, end) if math.isfinite(degrees) else ndtri(end))


def effective_number(columns: FloatArray) -> float:
    """The number of clusters of equal weight as informative as these [clusters, columns]."""
    shares = (columns / columns.sum(0)).mean(1)
    return float(1 / (shares**2).sum())


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The arithmetic mean of independent estimates (made on different streams, in one run)."""
    value = sum(one.value for one in estimates) / len(estimates)
    groups = zip(*(one.units for one in estimates), strict=False)
    units = tuple(np.log(np.mean(np.exp(np.stack(group)), axis=0)) for group in groups)
    machine = _largest([one.machine for one in estimates])
    drawn = [one.resamples for one in estimates if one.resamples is not None]
    if len(drawn) < len(estimates):
        return Estimate(value, units=units, machine=machine)
    resamples = np.mean(drawn, axis=0)
    degrees = _combined_degrees(drawn, [one.degrees for one in estimates])
    return with_interval(Estimate(value, None, resamples, degrees, units, machine))


def quotient(top: Estimate, bottom: Estimate, *, is_one_run: bool = True) -> Estimate:
    """`top` / `bottom`, paired by prompts if both were made on the same stream.

    Numbers of one run, or pool of runs, are paired by passes or runs too; else their units are
    independent.
    """
    value = top.value / bottom.value
    if is_one_run:
        pairs = zip(top.units, bottom.units, strict=False)
        units = tuple(own - other for own, other in pairs)
        machine = _largest([top.machine, bottom.machine])
    else:
        known = [one.machine for one in (top, bottom) if one.machine is not None]
        units = (*top.units, *bottom.units) if top.units and bottom.units else ()
        machine = total(known) if len(known) == 2 else None
    if top.resamples is None or bottom.resamples is None:
        return Estimate(value, units=units, machine=machine)
    resamples = top.resamples / bottom.resamples
    degrees = min(top.degrees, bottom.degrees)
    return with_interval(Estimate(value, None, resamples, degrees, units, machine))


def _largest(variances: Sequence[Variance | None]) -> Variance | None:
    """The largest variance; None if one is unknown."""
    known = [variance for variance in variances if variance is not None]
    return max(known) if len(known) == len(variances) else None


def interval(resamples: FloatArray, degrees: float) -> Interval | None:
    """The expanded percentile interval (Hesterberg 2015, "What Teachers Should Know about the
    Bootstrap", section 5.3).

    The plain percentile interval of few clusters is too narrow by the factor between a
    normal's and a t-distribution's quantile. None with too few degrees of freedom.
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


class Scope(NamedTuple):
    """Sources of variance in intervals of times besides prompts: passes of one run, or runs."""

    kind: Literal["passes", "runs"] = "passes"
    number: int = 1

    @property
    def is_estimated(self) -> bool:
        """True if the machine's variance is part of the intervals."""
        return self.number > 1

    @property
    def text(self) -> str:
        """In words: "prompts and 3 passes"."""
        return f"prompts and {self.number} {self.kind}" if self.is_estimated else PROMPTS_ONLY


ONE_PASS = Scope()


def unit_sd(value: Value) -> float | None:
    """The standard deviation of a number's logarithm between the units of its run."""
    if not isinstance(value, Estimate) or len(value.units) != 1:
        return None
    variance, known = of_mean(value.units[0]), np.isfinite(value.units[0]).sum()
    return None if variance is None else math.sqrt(variance.value * float(known))
