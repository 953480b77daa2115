"""The one test of "A is slower than B", corrected for the number of tests.

The logarithm of a ratio is compared with that of an allowed ratio by Student's t, with the
variance from prompts (of the bootstrap's resamples) and from the machine. A bootstrap quantile
would need a hundred thousand resamples to reach the tails that many tests ask for.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from specbench.analysis.stats.combining import quotient
from specbench.analysis.stats.confidence import MIN_DEGREES, quantile
from specbench.analysis.stats.estimates import Missing, Value
from specbench.analysis.stats.variance import Variance, total

ALPHA = 0.05
"""Chance of any false claim about the methods of a run, or about one comparison of two runs."""
GATE_ALPHA = 0.01
"""Chance of any false alarm of the gate: each makes somebody search for a cause that does not
exist.
"""
_NO_SPREAD = 1e-9
"""Standard deviations and distances of logarithms below this count as 0, such as those of MAT if
no step changed.
"""

Key = TypeVar("Key")


class LogRatio(NamedTuple):
    """The logarithm of a ratio of two numbers."""

    value: float
    variance: Variance
    """From prompts and machine."""


def slower(a: Value, b: Value, allowed: float, machine: Variance | None) -> float | None:
    """The p-value of "`a` is slower than `b` by at most the share `allowed`".

    The test is Student's t of log(a / b), or the normal's with infinite degrees of freedom. None
    if nothing can be claimed: a number or the machine's variance is unknown, or there are too few
    samples.

    Args:
        a: a speed, or another number of which higher is better.
        b: the number that `a` is compared with, paired by prompts.
        allowed: a share such as 0.05: `a` is slower by at most this share if b / a <= 1 + allowed.
        machine: the variance that passes or runs add to log(a / b); None if unknown. `EXACT`, a
            variance of 0, if `allowed` covers the variation of the machine.
    """
    log_ratio = _log_ratio(a, b, machine)  # log(a / b), with the variance of prompts and machine
    if log_ratio is None:
        return None
    # score = (log(a / b) + log(1 + allowed)) / standard deviation
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
    """The distance of log(a / b) from the allowed logarithm at which `slower` gives p = `level`.

    None as for `slower`. `machine` is the variance that passes or runs add to log(a / b).
    """
    log_ratio = _log_ratio(a, b, machine)
    if log_ratio is None:
        return None
    variance = log_ratio.variance
    return quantile(variance.degrees, 1 - level) * math.sqrt(variance.value)


def _log_ratio(a: Value, b: Value, machine: Variance | None) -> LogRatio | None:
    """log(a / b) with its variance; None if either is unknown, or with too few samples.

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
    """The two-sided p-value of "`a` is as fast as `b`"; None as for `slower`."""
    p_value = slower(a, b, 0.0, machine)
    if p_value is None:
        return None
    return 2 * min(p_value, 1 - p_value)


def holm(p_values: Mapping[Key, float | None]) -> dict[Key, float | None]:
    """The p-values, corrected for the number of tests (Holm 1979); keys name the tests.

    A test without a p-value keeps None, and is not counted. If every test with a corrected p-value
    below alpha leads to a claim, the chance that any claim is wrong is at most alpha, however the
    tests depend on each other.
    """
    given_p_values = {key: p_value for key, p_value in p_values.items() if p_value is not None}
    corrected: dict[Key, float | None] = dict.fromkeys(p_values)
    # The smallest of n p-values is multiplied by n, the next by n - 1, and so on. A corrected
    # p-value is at least as large as those before, so that the order of the tests stays.
    largest_so_far = 0.0
    for index, key in enumerate(sorted(given_p_values, key=given_p_values.__getitem__)):
        num_left = len(given_p_values) - index
        largest_so_far = max(largest_so_far, min(1.0, num_left * given_p_values[key]))
        corrected[key] = largest_so_far
    return corrected
