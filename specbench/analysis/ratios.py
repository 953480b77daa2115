"""The ratios behind the numbers of a cell: factors of both sides, summed over rows that have them.

A ratio is prod(sums of the top factors) / prod(sums of the bottom factors). A speedup, for
example, is (vanilla's seconds * tokens) / (vanilla's tokens * seconds), each summed over the
same completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.stats.arrays import BoolArray, FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Ratio
from specbench.analysis.stats.variance import EXACT

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    "num_tokens", "wall_s", "decode_s", "mat_emitted", "mat_steps",
    "baseline_num_tokens", "baseline_wall_s", "baseline_decode_s",
)  # fmt: skip
"""The columns of a record table that ratios are of."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The sample, the unit (pass or run) and the request that each row belongs to: [rows] each."""

    clusters: IntArray
    units: IntArray
    requests: IntArray
    num_units: int


@dataclass(frozen=True, slots=True, eq=False)
class RowRatio:
    """A ratio of columns [rows], over the rows `where` it has all it needs."""

    where: BoolArray
    top: tuple[FloatArray, ...]
    bottom: tuple[FloatArray, ...]
    is_time: bool = True

    def summed(self, places: Places) -> Ratio:
        """The sums per sample. Only times depend on the machine."""
        where, clusters = self.where, places.clusters[self.where]
        top, bottom = ([one[where] for one in side] for side in (self.top, self.bottom))
        units: tuple[FloatArray, ...] = ()
        if self.is_time:
            rows = Places(clusters, places.units[where], places.requests[where], places.num_units)
            units = log_ratios(rows, top, bottom)
        sums = cluster_sums(clusters, top), cluster_sums(clusters, bottom)
        return Ratio(*sums, units=units, machine=None if self.is_time else EXACT)


def row_ratios(columns: Mapping[str, NDArray[Any]]) -> dict[str, RowRatio]:
    """The ratios of rows with these `COLUMNS`, by the name of the number."""
    tokens, wall_s, decode_s, emitted, steps, base_tokens, base_wall_s, base_decode_s = (
        columns[name] for name in COLUMNS
    )
    is_decoded = (tokens > 1) & (base_tokens > 1) & (decode_s > 0) & (base_decode_s > 0)
    own_mat = np.divide(emitted, steps, out=np.zeros(len(steps)), where=emitted > 0)
    return {
        "speedup": RowRatio(base_tokens > 0, (base_wall_s, tokens), (base_tokens, wall_s)),
        "decode_speedup": RowRatio(
            is_decoded, (base_decode_s, tokens - 1), (base_tokens - 1, decode_s)
        ),
        "tokens_per_s": RowRatio(tokens > 0, (tokens,), (wall_s,)),
        "mat": RowRatio(emitted > 0, (emitted,), (steps,), is_time=False),
        "mat_macro": RowRatio(emitted > 0, (own_mat,), (np.ones(len(steps)),), is_time=False),
    }


def cluster_sums(clusters: IntArray, columns: Sequence[FloatArray]) -> FloatArray:
    """The columns summed per cluster: [clusters, columns]."""
    _, dense = np.unique(clusters, return_inverse=True)
    return np.stack([np.bincount(dense, weights=column) for column in columns], axis=1)


def column_ratio(rows: DataFrame, top: Sequence[str], bottom: Sequence[str]) -> Ratio:
    """The ratio of columns of these rows of a record table, by cluster."""
    of = rows["cluster"].to_numpy()
    above, below = (
        cluster_sums(of, [rows[name].to_numpy() for name in side]) for side in (top, bottom)
    )
    return Ratio(above, below)


def log_ratios(
    rows: Places, top: Sequence[FloatArray], bottom: Sequence[FloatArray]
) -> tuple[FloatArray, ...]:
    """The logarithm of the ratio of these columns [rows] in each unit.

    One array [units], or nothing if there is one unit. It is over the requests that all units
    have, since the others' prompts would count as noise of their units. NaN stands for a unit
    with half of all requests or fewer, as of an interrupted pass.
    """
    if rows.num_units < 2 or not len(rows.units):
        return ()
    num_requests = 1 + int(rows.requests.max())
    seen = np.unique(rows.units * num_requests + rows.requests)
    units, requests = np.divmod(seen, num_requests)
    is_known = 2 * np.bincount(units, minlength=rows.num_units) > len(np.unique(requests))
    in_units = np.bincount(requests[is_known[units]], minlength=num_requests)
    is_kept = (in_units == is_known.sum())[rows.requests]
    with np.errstate(divide="ignore", invalid="ignore"):
        above, below = (
            sum(np.log(np.bincount(rows.units, one * is_kept, rows.num_units)) for one in side)
            for side in (top, bottom)
        )
        logs = np.where(is_known, np.subtract(above, below), np.nan)
    return (logs,)
