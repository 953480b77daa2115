"""Find the break-even load of a method: the number of requests at once up to which it is faster.

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
"""The percentiles at the two ends of an interval."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The load at which a method stops being faster than vanilla."""

    load: float
    """The lowest load (requests at once) at which the method is no longer faster. It is 0 if the
    method is not faster at the smallest measured load, and infinite if it is faster at all of them.
    """
    last_faster: int | None
    """The largest measured load below `load`, or None."""
    first_slower: int | None
    """The smallest measured load above `load`, or None."""
    interval: Interval | None = None
    """The 95 % interval of `load`. Its ends may be 0 or infinite. None if it is unknown."""


def crossing(loads: Sequence[int], ratios: Sequence[float]) -> float:
    """Find the lowest load at which the ratio of throughputs falls to 1.

    `loads` are numbers of requests at once, in ascending order; `ratios` are the method's
    throughput / vanilla's at these loads. Between loads l0 and l1 with the ratios r0 > 1 >= r1, the
    result l has log l = log l0 + (r0 - 1) / (r0 - r1) * log(l1 / l0). It is 0 if the first ratio is
    at most 1, and infinite if all ratios are above 1.
    """
    if ratios[0] <= 1:
        return 0.0
    for (load, ratio), (next_load, next_ratio) in pairwise(zip(loads, ratios, strict=True)):
        if next_ratio <= 1:
            share = (ratio - 1) / (ratio - next_ratio)  # of the way from log load to log next_load
            return float(load * math.exp(share * math.log(next_load / load)))
    return math.inf


def break_even(ratios: Mapping[int, Estimate]) -> BreakEven:
    """Find the load at which a method's throughput falls to vanilla's, with its 95 % interval.

    The load is 0 if the method is not faster at the lowest load, and infinite if it is faster at
    every load. `ratios` maps each measured load (requests at once) to the method's throughput /
    vanilla's. Each resample of the ratios has a break-even load, and the interval holds 95 % of
    these loads. It is None if the ratio at any load has no resamples.
    """
    loads = sorted(ratios)
    break_even_load = crossing(loads, [ratios[load].value for load in loads])
    # The resamples of each load's ratio [num_resamples], for loads that have them.
    ratios_of_loads = [
        resamples for load in loads if (resamples := ratios[load].resamples) is not None
    ]
    interval = None
    if len(ratios_of_loads) == len(loads):
        # a row has the ratios at all loads in one resample [num_resamples, loads]
        ratio_rows = np.stack(ratios_of_loads, axis=1)
        # loads, 0 or infinite
        crossings = [crossing(loads, ratio_row) for ratio_row in ratio_rows]
        # "nearest", because interpolation fails between infinite loads
        low, high = np.percentile(crossings, _TAILS, method="nearest")
        interval = Interval(float(low), float(high))
    return BreakEven(
        break_even_load,
        last_faster=max((load for load in loads if load < break_even_load), default=None),
        first_slower=min((load for load in loads if load > break_even_load), default=None),
        interval=interval,
    )
