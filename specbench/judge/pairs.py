"""Compute the numbers of a cell in two runs, and their ratios over the same requests.

A ratio is subject / reference. The bootstrap draws the same samples for both runs, so that
properties of a sample, such as its length, cancel out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from specbench.analysis.cells import NO_BASELINE, NO_STEPS
from specbench.analysis.means import mean_over_tasks
from specbench.analysis.ranking import is_alone, is_claimed
from specbench.analysis.ratios import COLUMNS, RowGroups, RowRatio, row_ratios
from specbench.analysis.records import REQUEST_KEY
from specbench.analysis.stats.arrays import BoolArray
from specbench.analysis.stats.bootstrap import Draws
from specbench.analysis.stats.combining import quotient
from specbench.analysis.stats.estimates import Missing, Value
from specbench.analysis.stats.scope import Scope
from specbench.log.run import Load

if TYPE_CHECKING:
    from pandas import DataFrame

Metric: TypeAlias = Literal["tokens_per_s", "speedup", "mat"]
"""A compared number of a cell."""
METRICS: tuple[Metric, ...] = get_args(Metric)

NO_SHARED = Missing("no shared completions")
_REASONS: Mapping[Metric, Missing] = {
    "tokens_per_s": NO_SHARED,
    "speedup": NO_BASELINE,
    "mat": NO_STEPS,
}
"""Metric -> the reason why it is missing if no completion has what it needs."""

RUN_AND_PASS = ["run", "pass_"]
"""Columns with the number of a request's run in its pool (0 without a pool), and of its pass."""
_NOT_PAIRED = ("repeat", *Load._fields)
"""Columns of a request by which two runs are not paired. Passes are paired by `RUN_AND_PASS`. Loads
may differ, since a run of the engine has none.
"""
_REQUEST = [name for name in REQUEST_KEY if name not in _NOT_PAIRED] + RUN_AND_PASS
"""Columns that identify a request in two runs at one load."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """The passes or runs that both sides have."""

    scope: Scope
    """The sources of variance that intervals of times cover."""
    is_one_run: bool
    """Both sides are the same run, so that passes are paired."""

    @property
    def is_judged(self) -> bool:
        """True if a difference in speed can be significant. That is not possible with one run per
        side, or between methods of one pass.
        """
        return self.scope.is_estimated and (self.is_one_run or self.scope.kind == "runs")


@dataclass(frozen=True, slots=True)
class Pair:
    """One metric in both runs, over the same samples."""

    subject: Value
    reference: Value
    ratio: Value
    """subject / reference."""
    p_value: float | None = None
    """The p-value of "the ratio is 1", corrected in `with_p_values`; None if this is not tested."""

    @property
    def is_claimed(self) -> bool:
        """True if the test supports a difference."""
        return is_claimed(self.p_value)

    @property
    def is_alone(self) -> bool:
        """True if the interval shows a difference, but the corrected test does not."""
        return is_alone(self.ratio, self.p_value)


@dataclass(frozen=True, slots=True)
class CellPair:
    """One cell in both runs: a method at a temperature, on a task or on all tasks pooled."""

    tokens_per_s: Pair
    speedup: Pair
    """The speedup in each run, over its own vanilla."""
    mat: Pair
    num_completions: int = 0
    """Completions that both runs finished."""
    num_samples: int = 0
    """Samples of these completions."""

    def pair(self, metric: Metric) -> Pair:
        """Return the pair of a metric by the metric's name."""
        pair: Pair = getattr(self, metric)
        return pair


def pair_requests(
    subject: DataFrame, reference: DataFrame, methods: Mapping[str, str]
) -> DataFrame:
    """The requests that both runs finished, one per row, in the order of the subject.

    Both frames are the measured rows of a `RecordTable` with the columns `RUN_AND_PASS`. `methods`
    maps each method of the subject to the method of the reference that it is compared with. Columns
    of the reference end in `_reference`.
    """
    subject_method = {reference: subject for subject, reference in methods.items()}
    subject_rows = _rows_of_methods(subject, methods)
    reference_rows = _rows_of_methods(reference, subject_method)
    # Rows are joined under the names of the subject's methods.
    reference_rows["method"] = reference_rows["method"].map(subject_method).astype(object)
    return subject_rows.merge(reference_rows, on=["method", *_REQUEST], suffixes=("", "_reference"))


def _rows_of_methods(frame: DataFrame, methods: Collection[str]) -> DataFrame:
    """The rows of these methods, with the columns that a comparison needs."""
    columns = ["method", *_REQUEST, "cluster", "unit", "request", *COLUMNS]
    return joinable(frame.loc[frame["method"].isin(list(methods)), columns])


def joinable(frame: DataFrame) -> DataFrame:
    """The frame with texts in place of categories, which differ between runs and do not join."""
    return frame.astype(dict.fromkeys(("method", "task", "sample_id"), object))


class _Side(NamedTuple):
    """The numbers of one of the two runs, row by row."""

    ratios: Mapping[str, RowRatio]
    """Ratios of the rows, by metric."""
    groups: RowGroups
    """The samples of the rows. Both sides have those of the subject, so that draws pair them."""

    def value(self, metric: Metric, is_used: BoolArray, draws: Draws | None) -> Value:
        """The value of a metric over the used rows, with an interval if there are draws."""
        ratio = replace(self.ratios[metric], where=is_used).summed(self.groups)
        return draws.estimate(ratio) if draws else ratio.estimate


def _side(rows: DataFrame, suffix: str, repetition: Repetition) -> _Side:
    """The numbers of a run in rows of `pair_requests`, from the columns with this suffix."""
    columns = {name: rows[f"{name}{suffix}"].to_numpy(dtype=np.float64) for name in COLUMNS}
    groups = RowGroups(
        rows["cluster"].to_numpy(),
        rows[f"unit{suffix}"].to_numpy(),
        rows[f"request{suffix}"].to_numpy(),
        repetition.scope.number,
    )
    return _Side(row_ratios(columns), groups)


def pair_cell(
    rows: DataFrame, draws: Draws | None, no_times: Missing | None, repetition: Repetition
) -> CellPair:
    """The numbers of a cell in both runs: a pair with its ratio for each metric.

    Args:
        rows: rows of `pair_requests` for the cell.
        draws: resamples of the task's samples, for intervals. None (for all tasks pooled) gives
            numbers without intervals.
        no_times: the reason why the times of a run are not evidence; None if they are.
        repetition: the passes or runs that both sides have.
    """
    if not len(rows):
        no_pair = _pair(NO_SHARED, NO_SHARED)
        return CellPair(tokens_per_s=no_pair, speedup=no_pair, mat=no_pair)
    subject = _side(rows, "", repetition)  # one run's numbers of each row
    reference = _side(rows, "_reference", repetition)
    pairs: dict[Metric, Pair] = {}
    for metric in METRICS:
        # True for rows in which both runs have what the metric needs [rows]
        is_used = subject.ratios[metric].where & reference.ratios[metric].where
        if no_times and metric != "mat":
            pairs[metric] = _pair(no_times, no_times)
        elif not is_used.any():
            pairs[metric] = _pair(_REASONS[metric], _REASONS[metric])
        else:
            pairs[metric] = _pair(
                subject.value(metric, is_used, draws),
                reference.value(metric, is_used, draws),
                is_one_run=repetition.is_one_run,
            )
    # A cluster is a sample with all its turns and passes. Samples with the same prompt are one.
    return CellPair(**pairs, num_completions=len(rows), num_samples=rows["cluster"].nunique())


def mean_cell(cells: Sequence[CellPair], *, is_one_run: bool) -> CellPair:
    """Means of the values over tasks, with their ratio. They are missing if a task is missing."""
    means: dict[Metric, Pair] = {}
    for metric in METRICS:
        pairs = [cell.pair(metric) for cell in cells]
        subject = mean_over_tasks([pair.subject for pair in pairs])
        reference = mean_over_tasks([pair.reference for pair in pairs])
        means[metric] = _pair(subject, reference, is_one_run=is_one_run)
    return CellPair(
        **means,
        num_completions=sum(cell.num_completions for cell in cells),
        num_samples=sum(cell.num_samples for cell in cells),
    )


def _pair(subject: Value, reference: Value, *, is_one_run: bool = False) -> Pair:
    """Two values with their ratio, which is missing if either value is."""
    if isinstance(subject, Missing):
        return Pair(subject, reference, ratio=subject)
    if isinstance(reference, Missing):
        return Pair(subject, reference, ratio=reference)
    return Pair(subject, reference, ratio=quotient(subject, reference, is_one_run=is_one_run))
