"""Compute the numbers of a cell as ratios of sums, over the rows that have all numbers needed.

A ratio is prod(sums of the top factors) / prod(sums of the bottom factors). A speedup, for
example, is (vanilla's seconds * tokens) / (vanilla's tokens * seconds), each summed over the
same completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.stats.arrays import BoolArray, FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Ratio
from specbench.analysis.stats.variance import EXACT

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    "num_tokens",
    "wall_s",
    "decode_s",
    "mat_emitted",
    "mat_steps",
    "baseline_num_tokens",
    "baseline_wall_s",
    "baseline_decode_s",
)
"""The columns of a record table from which ratios are made."""


@dataclass(frozen=True, slots=True, eq=False)
class RowGroups:
    """The sample, the unit and the request of each row [rows]."""

    clusters: IntArray
    """The numbers of the samples."""

    units: IntArray
    """The numbers of the passes, or of the runs of a pool."""

    requests: IntArray
    """The numbers of the requests, the same in every unit."""

    num_units: int
    """The number of units of the whole run. These rows may lack some of them."""

    def where(self, is_kept: BoolArray) -> RowGroups:
        """Select the groups of the rows for which `is_kept` [rows] is True."""
        return RowGroups(
            self.clusters[is_kept],
            self.units[is_kept],
            self.requests[is_kept],
            self.num_units,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowRatio:
    """A ratio of columns [rows], over the rows that have all numbers needed."""

    where: BoolArray
    """True for the rows that count [rows]."""

    top: tuple[FloatArray, ...]
    """The factors of the numerator. Each is a column [rows]."""

    bottom: tuple[FloatArray, ...]
    """The factors of the denominator. Each is a column [rows]."""

    is_time: bool = True
    """True for a ratio of times, which depends on the machine."""

    def summed(self, groups: RowGroups) -> Ratio:
        """Make the ratio prod(sums of `top`) / prod(sums of `bottom`), from sums over each sample.

        The sums are over the rows that count (`self.where`). A ratio of times (`self.is_time`) also
        gets its logarithm in each unit, from which the machine's variance is estimated. `groups`
        has the sample (cluster), the unit (pass or run) and the request of each row [rows].
        """
        top_columns = [column[self.where] for column in self.top]
        bottom_columns = [column[self.where] for column in self.bottom]
        counted_groups = groups.where(self.where)
        # sums per sample [clusters, columns]
        top_sums = cluster_sums(counted_groups.clusters, top_columns)
        bottom_sums = cluster_sums(counted_groups.clusters, bottom_columns)
        if not self.is_time:
            return Ratio(top_sums, bottom_sums, machine=EXACT)  # the machine adds no variance
        unit_logs = log_ratios(counted_groups, top_columns, bottom_columns)
        # The machine's variance is None: it follows from `unit_logs`, or is unknown with one unit.
        return Ratio(top_sums, bottom_sums, units=unit_logs, machine=None)


def row_ratios(columns: Mapping[str, NDArray[Any]]) -> dict[str, RowRatio]:
    """Make the ratios of speedups, tokens/s and MAT. The keys are names of metrics.

    `columns` maps the names in `COLUMNS` to a number per completion of the method [rows]. Columns
    `baseline_...` have this number for vanilla's completion of the same request, or 0 without one.
    `wall_s` is the time of all tokens in seconds, `decode_s` the time of the tokens after the
    first. `mat_emitted` is the number of tokens that steps emitted, `mat_steps` the number of
    steps. Both are 0 if they are unknown, or without steps.
    """
    num_tokens = columns["num_tokens"]
    wall_s = columns["wall_s"]
    decode_s = columns["decode_s"]
    num_emitted = columns["mat_emitted"]
    num_steps = columns["mat_steps"]
    base_num_tokens = columns["baseline_num_tokens"]
    base_wall_s = columns["baseline_wall_s"]
    base_decode_s = columns["baseline_decode_s"]

    # Flags [rows]. Imported files may lack times: NaN > 0 is False.
    has_time = wall_s > 0
    is_paired = (base_num_tokens > 0) & has_time & (base_wall_s > 0)  # vanilla answered too
    # The prefill emits the first token, so only answers of two tokens or more have a decode time.
    has_decoded = (num_tokens > 1) & (decode_s > 0)
    has_base_decoded = (base_num_tokens > 1) & (base_decode_s > 0)
    has_steps = num_emitted > 0
    # The MAT of each row, 0 without steps. The mean over rows is sum(mat_of_row) / sum(ones).
    mat_of_row = np.divide(num_emitted, num_steps, out=np.zeros(len(num_steps)), where=has_steps)
    ones = np.ones(len(num_steps))
    # A RowRatio has the rows that count, the factors of the numerator, and of the denominator.
    speedup = RowRatio(is_paired, (base_wall_s, num_tokens), (base_num_tokens, wall_s))
    decode_speedup = RowRatio(
        has_decoded & has_base_decoded,
        (base_decode_s, num_tokens - 1),
        (base_num_tokens - 1, decode_s),
    )
    return {
        "speedup": speedup,
        "decode_speedup": decode_speedup,
        "tokens_per_s": RowRatio((num_tokens > 0) & has_time, (num_tokens,), (wall_s,)),
        "mat": RowRatio(has_steps, (num_emitted,), (num_steps,), is_time=False),
        "mat_macro": RowRatio(has_steps, (mat_of_row,), (ones,), is_time=False),
    }


def cluster_sums(clusters: IntArray, columns: Sequence[FloatArray]) -> FloatArray:
    """Add up each column [rows] in each cluster. The result is [clusters, columns].

    `clusters` has the number of each row's cluster [rows]; clusters without rows are left out.
    """
    _, dense_clusters = np.unique(clusters, return_inverse=True)
    sums = [np.bincount(dense_clusters, weights=column) for column in columns]
    return np.stack(sums, axis=1)


def column_ratio(rows: DataFrame, top: Sequence[str], bottom: Sequence[str]) -> Ratio:
    """Make the ratio prod(sums of `top`) / prod(sums of `bottom`) of columns, given by name.

    `rows` are rows of the frame of a record table; the ratio has the sums of each cluster.
    """
    clusters = rows["cluster"].to_numpy()
    top_columns = [rows[name].to_numpy() for name in top]
    bottom_columns = [rows[name].to_numpy() for name in bottom]
    return Ratio(cluster_sums(clusters, top_columns), cluster_sums(clusters, bottom_columns))


def log_ratios(
    groups: RowGroups, top: Sequence[FloatArray], bottom: Sequence[FloatArray]
) -> tuple[FloatArray, ...]:
    """Compute the logarithm of the ratio of these columns [rows] in each unit: one array [units].

    A unit is a pass or a run. The result is empty if there are fewer than two. The sums are over
    the requests that all complete units have, so that units do not differ because of their prompts.
    A unit that is not complete, such as an interrupted pass, gets NaN. `groups` has the number of
    the unit and of the request of each row.
    """
    if groups.num_units < 2 or not len(groups.units):
        return ()
    complete = complete_units(groups.units, groups.requests, groups.num_units)
    is_row_kept = complete.has_row  # the request of the row is in all complete units [rows]
    with np.errstate(divide="ignore", invalid="ignore"):  # incomplete units may have sums of 0
        # log(product of top sums) and log(product of bottom sums) in each unit [units]
        log_top = _log_of_product(groups, top, is_row_kept)
        log_bottom = _log_of_product(groups, bottom, is_row_kept)
        logs = np.where(complete.is_complete, np.subtract(log_top, log_bottom), np.nan)
    return (logs,)


class CompleteUnits(NamedTuple):
    """The complete units, and the requests that they share. A unit is a pass or a run."""

    is_complete: BoolArray
    """True for units with more than half of all requests [units]."""

    has_row: BoolArray
    """True for rows whose request all complete units have [rows]."""


def complete_units(units: IntArray, requests: IntArray, num_units: int) -> CompleteUnits:
    """Find the complete units: those with more than half of all requests.

    `units` and `requests` have the numbers of each row's unit and request [rows].
    """
    num_requests = 1 + int(requests.max())
    # True if the unit has rows of the request [units, requests].
    has_request = np.zeros((num_units, num_requests), dtype=bool)
    has_request[units, requests] = True
    num_present = has_request.any(axis=0).sum()  # requests that any unit has
    is_complete = 2 * has_request.sum(axis=1) > num_present  # [units]
    is_in_all_units = has_request[is_complete].all(axis=0)  # [requests]
    return CompleteUnits(is_complete, is_in_all_units[requests])


def _log_of_product(
    rows: RowGroups, columns: Sequence[FloatArray], is_kept: BoolArray
) -> FloatArray | int:
    """Compute the log of the product of the columns' sums over kept rows, in each unit [units].

    `rows` has the unit of each row; `is_kept` [rows] is True for the rows that count.
    """
    sums = (np.bincount(rows.units, column * is_kept, rows.num_units) for column in columns)
    return sum(np.log(column_sums) for column_sums in sums)
