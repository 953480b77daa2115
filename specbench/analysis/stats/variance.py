"""Compute variances of logarithms with their degrees of freedom, and sums of such variances."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from specbench.analysis.stats.arrays import FloatArray


class Variance(NamedTuple):
    """A variance of a logarithm, with its degrees of freedom."""

    value: float
    degrees: float


EXACT = Variance(0.0, math.inf)
"""The variance of a number that is the same on every machine at any time."""


def of_mean(logs: FloatArray) -> Variance | None:
    """Estimate the variance of the mean of these logarithms [units].

    An unknown logarithm is NaN and does not count. None with fewer than two known logarithms.
    """
    finite_logs = logs[np.isfinite(logs)]
    num_units = len(finite_logs)
    if num_units < 2:
        return None
    unit_variance = float(finite_logs.var(ddof=1))  # variance of a single unit's logarithm
    return Variance(unit_variance / num_units, num_units - 1)


def total(variances: Iterable[Variance]) -> Variance:
    """Add up independent variances, and compute the degrees of freedom of the sum.

    The degrees are Welch and Satterthwaite's (1946); they are infinite if no variance is above 0.
    """
    positive = [variance for variance in variances if variance.value > 0]
    variance_sum = math.fsum(variance.value for variance in positive)
    # 1 / degrees = sum of (share of the variance)^2 / degrees of the variance
    inverse_degrees = math.fsum(
        (variance.value / variance_sum) ** 2 / variance.degrees for variance in positive
    )
    degrees = 1 / inverse_degrees if inverse_degrees else math.inf
    return Variance(variance_sum, degrees)


def of_groups(groups: Sequence[FloatArray]) -> Variance | None:
    """Add up the variances of the means of independent groups of logarithms.

    A group has the logarithm of a number in each pass over a run's prompts, or in each run of a
    pool [units], NaN if unknown. None without groups, or if one has fewer than two known numbers.
    """
    return total_of_known([of_mean(logs) for logs in groups])


def total_of_known(variances: Sequence[Variance | None]) -> Variance | None:
    """Add up independent variances; None if any is unknown, or without any."""
    known_variances = _all_known(variances)
    return total(known_variances) if known_variances else None


def largest(variances: Sequence[Variance | None]) -> Variance | None:
    """Find the largest variance; None if any is unknown."""
    return max(_all_known(variances), default=None)


def _all_known(variances: Sequence[Variance | None]) -> list[Variance]:
    """Return the variances if all are known, or otherwise an empty list."""
    known_variances = [variance for variance in variances if variance is not None]
    return known_variances if len(known_variances) == len(variances) else []
