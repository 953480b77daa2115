"""The break-even load of a method: the number of requests at once up to which it pays.

Below this load, the method gives more throughput than vanilla. Between two measured loads the ratio
of throughputs is taken to lie on a straight line in the logarithm of the load.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from specbench.analysis.stats.estimates import Estimate, Interval

_TAILS = (2.5, 97.5)
"""Percentiles at the ends of an interval."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where a method stops paying, among the loads that were measured."""

    load: float
    """The load at which throughputs are equal; 0 if the method is faster at no measured load,
    infinite if it is faster at all of them.
    """
    last_faster: int | None
    """The largest measured load below `load`; None if there is none."""
    first_slower: int | None
    """The smallest measured load above `load`; None if there is none."""
    interval: Interval | None = None
    """95 % interval of `load`, whose ends may also be 0 or infinite; None if it is unknown."""


def crossing(loads: Sequence[int], ratios: Sequence[float]) -> float:
    """The load at which the ratio of throughputs falls to 1 for the first time.

    Between loads l0 and l1 with r0 > 1 >= r1: log l = log l0 + (r0 - 1) / (r0 - r1) *
    log(l1 / l0). `loads` ascend. 0 if the first ratio is at most 1, infinite if none is.
    """
    if ratios[0] <= 1:
        return 0.0
    for (load, ratio), (next_load, next_ratio) in pairwise(zip(loads, ratios, strict=True)):
        if next_ratio <= 1:
            share = (ratio - 1) / (ratio - next_ratio)  # of the way to next_load, in logs
            return float(load * math.exp(share * math.log(next_load / load)))
    return math.inf


def break_even(ratios: Mapping[int, Estimate]) -> BreakEven:
    """The break-even load from the ratios of a method's throughput to vanilla's, by load.

    The interval holds 95 % of the loads at which the ratios' resamples cross 1. There is no
    interval if the ratio of a load has no resamples.
    """
    loads = sorted(ratios)
    values = [ratios[load].value for load in loads]
    load = crossing(loads, values)
    resamples = [ratios[measured].resamples for measured in loads]
    interval = None
    if all(resampled is not None for resampled in resamples):
        resampled_ratios = np.stack([r for r in resamples if r is not None], axis=1)
        crossings = [crossing(loads, row) for row in resampled_ratios]  # [num_resamples]
        low, high = np.percentile(crossings, _TAILS, method="nearest")  # interpolation fails at inf
        interval = Interval(float(low), float(high))
    return BreakEven(
        load,
        last_faster=max((measured for measured in loads if measured < load), default=None),
        first_slower=min((measured for measured in loads if measured > load), default=None),
        interval=interval,
    )
