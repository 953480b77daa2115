"""Significance of a ratio: tests against a limit, corrected for their number.

Knows estimates with their bootstrap resamples. Knows nothing of methods, tasks or records.

The logarithm of a ratio is compared with the limit's, in units of the spread of its resamples, by
Student's t with the estimate's degrees of freedom. A bootstrap quantile would need a hundred
thousand resamples to reach the tails that many tests ask for. Holm's step-down keeps the chance of
any false claim below the error rate, however the tests depend on each other.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from specbench.analysis.stats.bootstrap import MIN_DEGREES, Estimate, Value

ERROR_RATE = 0.01
"""Chance of any false claim in one check, if every number is exactly at its limit."""

Key = TypeVar("Key")


def below(ratio: Value, limit: float) -> float | None:
    """The p-value of "the true ratio is at or above the limit".

    None if there are too few samples to know the spread.
    """
    return _one_sided(ratio, limit, sign=1)


def above(ratio: Value, limit: float) -> float | None:
    """The p-value of "the true ratio is at or below the limit"; None as for `below`."""
    return _one_sided(ratio, limit, sign=-1)


def _one_sided(ratio: Value, limit: float, *, sign: int) -> float | None:
    if not isinstance(ratio, Estimate) or ratio.resamples is None or ratio.degrees < 1:
        return None
    distance = sign * (math.log(ratio.value) - math.log(limit))
    spread = float(np.log(ratio.resamples).std())
    if spread < 1e-9:  # the same in every sample, as acceptance is if nothing changed
        return 0.0 if distance < -1e-9 else 1.0
    from scipy.special import stdtr

    return float(stdtr(ratio.degrees, distance / spread))


def differs(ratio: Value, limit: float = 1.0) -> float | None:
    """The two-sided p-value of "the true ratio is the limit", over prompts and machine.

    None if the variance of either is unknown.
    """
    if not isinstance(ratio, Estimate) or ratio.degrees < MIN_DEGREES:
        return None
    variance = ratio.variance
    if variance is None:
        return None
    distance = abs(math.log(ratio.value) - math.log(limit))
    spread = math.sqrt(variance.value)
    if spread < 1e-9:
        return 0.0 if distance > 1e-9 else 1.0
    from scipy.special import ndtr, stdtr

    score = -distance / spread
    degrees = variance.degrees
    return 2 * float(stdtr(degrees, score) if math.isfinite(degrees) else ndtr(score))


def sign_test(num_worse: int, num_better: int) -> float:
    """The p-value of "a change is as likely for the better as for the worse"."""
    from scipy.special import bdtrc

    return float(bdtrc(num_worse - 1, num_worse + num_better, 0.5)) if num_worse else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number (Holm 1979).

    Of all claims made below alpha, the chance that any is wrong is at most alpha, however the tests
    depend on each other.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def claims(p_values: Mapping[Key, float], error_rate: float = ERROR_RATE) -> set[Key]:
    """The tests that Holm's procedure rejects: the regressions to claim."""
    corrected = zip(p_values, holm([*p_values.values()]), strict=True)
    return {key for key, p_value in corrected if p_value <= error_rate}
