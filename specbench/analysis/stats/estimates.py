"""Define numbers with their confidence intervals, and missing numbers with their reasons."""

import math
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.confidence import MIN_DEGREES, SHOWN_DEGREES, UPPER_END, quantile
from specbench.analysis.stats.variance import EXACT, Variance, of_groups, of_mean, total


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval that includes both ends."""

    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Missing:
    """A missing number, with the reason why it is missing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval, and what is needed to combine it with other numbers."""

    value: float
    interval: Interval | None = None
    """The confidence interval; None if there are too few clusters for a claim."""

    resamples: FloatArray | None = field(default=None, repr=False, compare=False)
    """The number's value in each resample of the bootstrap [num_resamples]."""

    degrees: float = field(default=0.0, repr=False, compare=False)
    """The degrees of freedom of the resamples."""

    units: tuple[FloatArray, ...] = field(default=(), repr=False, compare=False)
    """The number's logarithm in each pass or run [units]; one array for each run or pool."""

    machine: Variance | None = field(default=EXACT, repr=False, compare=False)
    """The variance that passes or runs add to the logarithm. None if unknown, as after one pass."""

    wide_interval: Interval | None = field(default=None, compare=False)
    """An interval to show if there are too few clusters for `interval`; it supports no claim."""

    @property
    def shown_interval(self) -> Interval | None:
        """The interval to show, even a wide one; None if one sample or task decides the number."""
        return self.interval or self.wide_interval

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


def without_spread(number: float) -> Estimate:
    """Make the estimate of a number that is the same for all prompts and on every machine."""
    return Estimate(number, resamples=np.full(1, number), degrees=math.inf)


def with_interval(estimate: Estimate) -> Estimate:
    """Give an estimate its interval over prompts, and over units (passes or runs) if it has two.

    With fewer units, the interval leaves out the variance that the machine adds. Without resamples,
    the estimate stays as it is.
    """
    if estimate.resamples is None:
        return estimate
    unit_variance = of_groups(estimate.units)  # None with fewer than two units
    if unit_variance is not None:
        return with_machine(estimate, unit_variance)
    return _placed(estimate, interval(estimate.resamples, estimate.degrees))


def with_machine(estimate: Estimate, machine: Variance | None) -> Estimate:
    """Give an estimate this variance of the machine, and an interval that includes it.

    `machine` is the variance of the number's logarithm between units (passes over the prompts, or
    runs). The estimate stays as it is if `machine` is None (unknown), or if the number has no
    units, since it does not depend on the machine. With too few prompts, or without resamples, it
    gets the variance, but no interval.
    """
    if machine is None or not estimate.units:
        return estimate
    # without its interval, which leaves out the machine's variance
    estimate_without_interval = _placed(replace(estimate, machine=machine), None)
    variance = estimate_without_interval.variance  # from prompts and machine
    # `degrees` are the prompts' degrees of freedom, which may be NaN
    if variance is None or not estimate.degrees >= SHOWN_DEGREES:
        return estimate_without_interval
    # log value +/- t * sqrt(variance of prompts + variance of units)
    half_width = quantile(variance.degrees) * math.sqrt(variance.value)
    low = estimate.value * math.exp(-half_width)
    high = estimate.value * math.exp(half_width)
    return _placed(estimate_without_interval, Interval(low, high))


def _placed(estimate: Estimate, interval: Interval | None) -> Estimate:
    """Give an estimate this interval; it becomes `wide_interval` if there are too few clusters."""
    is_wide = not estimate.degrees >= MIN_DEGREES
    return replace(
        estimate,
        interval=None if is_wide else interval,
        wide_interval=interval if is_wide else None,
    )


def interval(resamples: FloatArray, degrees: float) -> Interval | None:
    """Compute the expanded percentile interval of resamples [num_resamples].

    With few clusters, the plain percentile interval is too narrow by the ratio of a normal quantile
    to one of Student's t. None if the degrees of freedom are fewer than SHOWN_DEGREES, or NaN.
    Source: Hesterberg 2015, "What Teachers Should Know about the Bootstrap", section 5.3.
    """
    if not degrees >= SHOWN_DEGREES:
        return None
    from scipy.special import ndtr, stdtrit

    # the probability of a normal variable below -t, instead of (1 - LEVEL) / 2
    tail = float(ndtr(-stdtrit(degrees, UPPER_END)))
    low, high = np.quantile(resamples, [tail, 1 - tail])
    return Interval(float(low), float(high))


def unit_sd(value: Value) -> float | None:
    """Compute the standard deviation of a number's logarithm between the passes or runs (units).

    None if the number is missing, depends on several runs, or is known in fewer than two units.
    """
    # `value.units` has an array of logarithms [units] for each run or pool of the number.
    if not isinstance(value, Estimate) or len(value.units) != 1:
        return None
    (logs,) = value.units  # NaN in units in which the number is unknown
    mean_variance = of_mean(logs)  # variance of a unit / number of units; None if fewer than two
    if mean_variance is None:
        return None
    num_units = np.isfinite(logs).sum()
    return math.sqrt(mean_variance.value * float(num_units))
