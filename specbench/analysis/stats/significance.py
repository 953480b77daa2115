"""Test "A is slower than B", and correct p-values for the number of tests.

Student's t compares the logarithm of a ratio with that of an allowed ratio. The variance is that
from prompts (the variance of the bootstrap's resamples) plus the machine's. A bootstrap
quantile would need a hundred thousand resamples to reach the tails that many tests need.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from specbench.analysis.stats.combining import quotient
from specbench.analysis.stats.confidence import MIN_DEGREES, quantile
from specbench.analysis.stats.estimates import Missing, Value
from specbench.analysis.stats.variance import Variance, total

ALPHA = 0.05
"""The largest chance of any false claim about the methods of a run or of two compared runs."""
GATE_ALPHA = 0.01
"""The largest chance of any false alarm of the gate. It is small, since after each false alarm
somebody looks for a cause that does not exist.
"""
_NO_SPREAD = 1e-9
"""Smaller standard deviations and distances of logarithms count as 0. An example is the ratio of
two MATs if no step changed.
"""

Key = TypeVar("Key")


class LogRatio(NamedTuple):
    """The logarithm of a ratio of two numbers."""

    value: float
    variance: Variance
    """The variance of the logarithm, from prompts and from the machine."""


def slower(a: Value, b: Value, allowed: float, machine: Variance | None) -> float | None:
    """Compute the p-value of "`a` is slower than `b` by at most the share `allowed`".

    The test compares log(a / b) with Student's t, or with the normal distribution if the degrees of
    freedom are infinite. None if nothing can be claimed: a number or the machine's variance is
    unknown, or there are too few samples.

    Args:
        a: a speed, or another number that is better if it is higher.
        b: the number with which `a` is compared, paired by prompts.
        allowed: a share such as 0.05: `a` is slower by at most this share if b / a <= 1 + allowed.
        machine: the variance that passes or runs add to log(a / b); None if unknown. It is `EXACT`
            (a variance of 0) if `allowed` covers the variation of the machine.
    """
    log_ratio = _log_ratio(a, b, machine)  # log(a / b), with the variance of prompts and machine
    if log_ratio is None:
        return None
    # score = distance / standard deviation, with distance = log(a / b) + log(1 + allowed)
    distance = log_ratio.value + math.log1p(allowed)
    standard_deviation = math.sqrt(log_ratio.variance.value)
    if standard_deviation < _NO_SPREAD:  # the ratio is the same in every sample
        if abs(distance) < _NO_SPREAD:  # it is exactly the allowed ratio
            return 0.5
        return 1.0 if distance > 0 else 0.0
    from scipy.special import ndtr, stdtr

    score = distance / standard_deviation
    degrees = log_ratio.variance.degrees
    return float(stdtr(degrees, score) if math.isfinite(degrees) else ndtr(score))


def margin(a: Value, b: Value, machine: Variance | None, level: float) -> float | None:
    """Compute how far log(a / b) is below the allowed logarithm if `slower` gives p = `level`.

    None in the same cases as `slower`. `machine` is the variance that passes or runs add to
    log(a / b).
    """
    log_ratio = _log_ratio(a, b, machine)
    if log_ratio is None:
        return None
    variance = log_ratio.variance
    return quantile(variance.degrees, 1 - level) * math.sqrt(variance.value)


def _log_ratio(a: Value, b: Value, machine: Variance | None) -> LogRatio | None:
    """Compute log(a / b) with its variance; None if either is unknown, or with too few samples.

    `machine` is the variance that passes or runs add to log(a / b); None if unknown.
    """
    if machine is None or isinstance(a, Missing) or isinstance(b, Missing):
        return None
    ratio = quotient(a, b)
    prompts = ratio.prompts  # the variance from the choice of prompts
    if prompts is None or ratio.degrees < MIN_DEGREES:
        return None
    return LogRatio(math.log(ratio.value), total([prompts, machine]))


def differs(a: Value, b: Value, machine: Variance | None) -> float | None:
    """Compute the two-sided p-value of "`a` is as fast as `b`"; None in the same cases as `slower`.

    `machine` is the variance that passes or runs add to log(a / b); None if unknown.
    """
    p_value = slower(a, b, 0.0, machine)
    if p_value is None:
        return None
    return 2 * min(p_value, 1 - p_value)


def holm(p_values: Mapping[Key, float | None]) -> dict[Key, float | None]:
    """Correct p-values for the number of tests (Holm 1979). The keys identify the tests.

    A test without a p-value keeps None, and is not counted. If each corrected p-value below alpha
    leads to a claim, the chance that any claim is wrong is at most alpha, even if the tests depend
    on each other.
    """
    given_p_values = {key: p_value for key, p_value in p_values.items() if p_value is not None}
    corrected: dict[Key, float | None] = dict.fromkeys(p_values)
    # The smallest of n p-values is multiplied by n, the next by n - 1, and so on. A corrected
    # p-value is at least as large as those before it, so their order stays the same.
    largest_so_far = 0.0
    for index, key in enumerate(sorted(given_p_values, key=given_p_values.__getitem__)):
        num_left = len(given_p_values) - index
        largest_so_far = max(largest_so_far, min(1.0, num_left * given_p_values[key]))
        corrected[key] = largest_so_far
    return corrected
