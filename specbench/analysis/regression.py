"""When a worse number is a claim: one-sided tests against a limit, corrected for their number.

Knows estimates with their bootstrap resamples. Knows nothing of methods, tasks or records.

A ratio's logarithm is held against the limit's, in units of the spread of its resamples, by
Student's t with the estimate's degrees of freedom: a bootstrap quantile would need a hundred
thousand resamples to reach the tails that many tests ask for. Holm's step-down keeps the chance of
any false claim below the error rate, however the tests hang together.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from specbench.analysis.stats import Estimate, Value

ERROR_RATE = 0.01
"""Chance of any false claim in one check, were every number exactly at its limit."""

Key = TypeVar("Key")


def below(ratio: Value, limit: float) -> float | None:
    """How likely a ratio as low as this one is if the truth is `limit`: the p-value against the
    truth being at or above it. None where too few samples tell of the spread.
    """
    if not isinstance(ratio, Estimate) or ratio.resamples is None or ratio.degrees < 1:
        return None
    distance = math.log(ratio.value) - math.log(limit)
    spread = float(np.log(ratio.resamples).std())
    if spread < 1e-9:  # the same in every sample, as acceptance is when nothing changed
        return 0.0 if distance < -1e-9 else 1.0
    from scipy.special import stdtr

    return float(stdtr(ratio.degrees, distance / spread))


def more_broken_than_mended(num_broken: int, num_mended: int) -> float:
    """The sign test: how likely so many of the changes are for the worse if each is as likely for
    the better.
    """
    from scipy.special import bdtrc

    return float(bdtrc(num_broken - 1, num_broken + num_mended, 0.5)) if num_broken else 1.0


def claims(p_values: Mapping[Key, float], error_rate: float = ERROR_RATE) -> set[Key]:
    """The tests that Holm's procedure rejects: those of a regression to be claimed."""
    claimed: set[Key] = set()
    in_order = sorted(p_values, key=lambda key: p_values[key])
    for rank, key in enumerate(in_order):
        if p_values[key] > error_rate / (len(in_order) - rank):
            break
        claimed.add(key)
    return claimed
