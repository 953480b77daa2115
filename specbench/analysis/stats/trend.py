"""A trend over a run, robust against outliers and against the order of different samples.

Knows groups of numbers in time. Knows nothing of methods or records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis.stats.bootstrap import Estimate, FloatArray, Interval

_MOST_POINTS = 300
"""Larger groups are thinned to this many medians of blocks, since slopes are of all pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Positive `values` [points] at the times `at` [points], ascending from 0 to 1 over the run."""

    at: FloatArray
    values: FloatArray


def relative_change(groups: Sequence[Series]) -> Estimate | None:
    """The relative change from the start of the run to its end: 0.1 is 10 % more.

    The median of the slopes of log(value) between all pairs of points of one group (Theil 1950,
    Sen 1968), with groups taken as the seasons of Hirsch, Slack and Smith 1982: points of different
    groups are never compared. The 95 % interval is from Kendall's S (Gilbert 1987, section 16.4.2).
    None if there are fewer than ten pairs.
    """
    slopes, variance = [], 0.0
    for group in map(_thinned, groups):
        n = len(group.at)
        first, second = np.triu_indices(n, 1)
        run = group.at[second] - group.at[first]
        rise = np.log(group.values[second] / group.values[first])
        slopes.append(rise[run > 0] / run[run > 0])
        variance += n * (n - 1) * (2 * n + 5) / 18
    pooled = np.sort(np.concatenate(slopes)) if slopes else np.empty(0)
    if len(pooled) < 10:
        return None
    from scipy.special import ndtri

    margin = float(ndtri(0.975)) * math.sqrt(variance)
    ends = (np.array([-margin, margin]) + len(pooled) - 1) / 2
    low, high = pooled[np.clip(ends.round().astype(int), 0, len(pooled) - 1)]
    return Estimate(
        math.expm1(float(np.median(pooled))),
        Interval(math.expm1(float(low)), math.expm1(float(high))),
    )


def _thinned(group: Series) -> Series:
    blocks = min(len(group.at), _MOST_POINTS)
    if blocks == len(group.at):
        return group
    return Series(
        np.array([np.median(part) for part in np.array_split(group.at, blocks)]),
        np.array([np.median(part) for part in np.array_split(group.values, blocks)]),
    )
