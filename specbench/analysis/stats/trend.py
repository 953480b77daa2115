"""A trend over a run, and a start that is not steady yet; both robust against outliers.

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
_MOST_BLOCKS, _LEAST_BLOCKS, _LEAST_IN_BLOCK = 20, 8, 6
_FAR = 4.0
"""Robust standard deviations of the other blocks above which a first block is not steady."""


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


def slow_start(logs: FloatArray, least: float) -> int:
    """The number of leading values that lie above the later ones: 0 if the start is steady.

    `logs` [values] are logarithms in the order of time, each less what is usual for its kind. They
    are cut into blocks of equal length. A start is not steady if the medians of its blocks lie
    above that of the other blocks by more than `least`, and by more than these differ. Slow starts
    of half the values or more are not found. Load that comes and goes makes all blocks differ.
    """
    num_blocks = min(_MOST_BLOCKS, len(logs) // _LEAST_IN_BLOCK)
    if num_blocks < _LEAST_BLOCKS:
        return 0
    blocks = np.array_split(logs, num_blocks)
    medians = np.array([np.median(block) for block in blocks])
    num_slow = 0
    while num_slow < num_blocks // 2:
        others = medians[num_slow + 1 :]
        middle = np.median(others)
        spread = 1.4826 * float(np.median(np.abs(others - middle)))
        if medians[num_slow] - middle <= max(least, _FAR * spread):
            break
        num_slow += 1
    return sum(map(len, blocks[:num_slow]))


def _thinned(group: Series) -> Series:
    blocks = min(len(group.at), _MOST_POINTS)
    if blocks == len(group.at):
        return group
    return Series(
        np.array([np.median(part) for part in np.array_split(group.at, blocks)]),
        np.array([np.median(part) for part in np.array_split(group.values, blocks)]),
    )
