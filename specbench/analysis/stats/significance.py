"""The one test of "A is slower than B", corrected for the number of tests.

The logarithm of a ratio is compared with a limit's by Student's t, with the variance from
prompts (of the bootstrap's resamples) and from the machine. A bootstrap quantile would need a
hundred thousand resamples to reach the tails that many tests ask for.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

from specbench.analysis.stats import MIN_DEGREES
from specbench.analysis.stats.bootstrap import Missing, Value, Variance, quantile, quotient, total

ALPHA = 0.05
"""Chance of any false claim about the methods of a run, or about one comparison of two runs."""
GATE_ALPHA = 0.01
"""Chance of any false alarm of the gate: each makes somebody search for what is not there."""

Key = TypeVar("Key")


def slower(a: Value, b: Value, limit: float, machine: Variance | None) -> float | None:
    """The p-value of "`a` is slower than `b` by at most the share `limit`".

    `a` and `b` are speeds, or other numbers where higher is better, paired by prompts.
    `machine` is the variance that passes or runs add to log(a / b). None where it is unknown,
    or where there are too few samples for an interval over prompts: then nothing can be
    claimed. `EXACT` where the limit is what the machine is allowed to differ by.
    """
    if (found := _log_ratio(a, b, machine)) is None:
        return None
    distance, variance = found[0] + math.log1p(limit), found[1]
    spread = math.sqrt(variance.value)
    if spread < 1e-9:  # the same in every sample, as acceptance is if nothing changed
        return 0.5 if abs(distance) < 1e-9 else float(distance > 0)
    from scipy.special import ndtr, stdtr

    score, degrees = distance / spread, variance.degrees
    return float(stdtr(degrees, score) if math.isfinite(degrees) else ndtr(score))


def margin(a: Value, b: Value, machine: Variance | None, level: float) -> float | None:
    """The distance of log(a / b) from a limit at which the p-value of `slower` falls to `level`."""
    if (found := _log_ratio(a, b, machine)) is None:
        return None
    return quantile(found[1].degrees, 1 - level) * math.sqrt(found[1].value)


def _log_ratio(a: Value, b: Value, machine: Variance | None) -> tuple[float, Variance] | None:
    """log(a / b) with its variance; None if that is unknown, or known from too few samples."""
    if machine is None or isinstance(a, Missing) or isinstance(b, Missing):
        return None
    ratio = quotient(a, b)
    if ratio.prompts is None or ratio.degrees < MIN_DEGREES:
        return None
    return math.log(ratio.value), total([ratio.prompts, machine])


def differs(a: Value, b: Value, machine: Variance | None) -> float | None:
    """The two-sided p-value of "`a` is as fast as `b`"; None as for `slower`."""
    p_value = slower(a, b, 0.0, machine)
    return None if p_value is None else 2 * min(p_value, 1 - p_value)


def holm(p_values: Mapping[Key, float | None]) -> dict[Key, float | None]:
    """The p-values corrected for the number of those that are known (Holm 1979).

    Of all claims made below alpha, the chance that any is wrong is at most alpha, however the
    tests depend on each other.
    """
    known = {key: p_value for key, p_value in p_values.items() if p_value is not None}
    corrected: dict[Key, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for rank, key in enumerate(sorted(known, key=known.__getitem__)):
        corrected[key] = largest = max(largest, min(1.0, (len(known) - rank) * known[key]))
    return corrected
