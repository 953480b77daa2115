"""One cell in two runs: the numbers of each run, and their ratios over the same requests.

A ratio is subject / reference. The bootstrap draws the same samples for both runs, so that
traits of a sample (its length, how predictable it is) cancel out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.cells import NO_BASELINE, NO_STEPS
from specbench.analysis.metrics import mean_over_tasks
from specbench.analysis.ranking import is_alone, is_claimed
from specbench.analysis.ratios import COLUMNS, Places, row_ratios
from specbench.analysis.records import REQUEST_KEY
from specbench.analysis.stats.bootstrap import (
    Draws,
    FloatArray,
    Missing,
    Ratio,
    Scope,
    Value,
    quotient,
)
from specbench.log.run import Load

if TYPE_CHECKING:
    from pandas import DataFrame

NO_SHARED = Missing("no shared completions")
_REASONS = {"tokens_per_s": NO_SHARED, "speedup": NO_BASELINE, "mat": NO_STEPS}
"""The numbers of a cell, and the reason why one is missing."""

_REQUEST = [name for name in REQUEST_KEY if name not in Load._fields]
"""Columns that identify a request in two runs at one load; runs of the engine have no load."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """The passes or runs that both sides have. `scope` says what intervals of times cover.

    `is_one_run` if both are the same run, so that passes are paired.
    """

    scope: Scope
    is_one_run: bool

    @property
    def is_judged(self) -> bool:
        """True if a difference in speed can be significant: not with one run a side, nor
        between methods of one pass.
        """
        return self.scope.is_estimated and (self.is_one_run or self.scope.kind == "runs")


@dataclass(frozen=True, slots=True)
class Pair:
    """One number in both runs. `ratio` is subject / reference, over the same samples.

    `p_value` is of "the ratio is 1", corrected for the comparison's tests; None if not tested.
    """

    subject: Value
    reference: Value
    ratio: Value
    p_value: float | None = None

    @property
    def is_claimed(self) -> bool:
        """True if the test supports a difference."""
        return is_claimed(self.p_value)

    @property
    def is_alone(self) -> bool:
        """True if the interval alone shows a difference, and the corrected test does not."""
        return is_alone(self.ratio, self.p_value)


@dataclass(frozen=True, slots=True)
class CellPair:
    """One cell in both runs. `speedup` is each run's own, over its own vanilla.

    The counts are of completions that both runs finished, and of the samples they belong to.
    """

    tokens_per_s: Pair
    speedup: Pair
    mat: Pair
    num_completions: int = 0
    num_samples: int = 0

    def pair(self, number: str) -> Pair:
        """One of the three numbers by its name."""
        found: Pair = getattr(self, number)
        return found


def pair_requests(
    subject: DataFrame, reference: DataFrame, methods: Mapping[str, str]
) -> DataFrame:
    """The requests that both runs finished, a row each, in the order of the subject.

    Both frames are of a `RecordTable`. `methods` maps each method of the subject to the method
    of the reference that it is compared with. Columns of the reference end in `_reference`;
    `row` is the row of the record in its table.
    """
    names = {theirs: own for own, theirs in methods.items()}
    own = _measured(subject, methods)
    theirs = _measured(reference, names)
    theirs["method"] = theirs["method"].map(names).astype(object)
    return own.merge(theirs, on=["method", *_REQUEST], suffixes=("", "_reference"))


def _measured(frame: DataFrame, methods: Collection[str]) -> DataFrame:
    rows = frame[frame["is_measured"] & frame["method"].isin(list(methods))]
    columns = rows[["method", *_REQUEST, "cluster", "unit", "request", *COLUMNS]]
    named = columns.astype(dict.fromkeys(("method", "task", "sample_id"), object))
    return named.assign(row=named.index)


def pair_cell(
    rows: DataFrame, draws: Draws | None, no_times: Missing | None, repetition: Repetition
) -> CellPair:
    """A cell from its rows of `pair_requests`, with intervals if there are draws.

    `no_times` is the reason why the times of a run are not evidence, if they are not.
    """
    if not len(rows):
        blank = _pair(NO_SHARED, NO_SHARED)
        return CellPair(blank, blank, blank)
    sides = row_ratios(_columns(rows, "")), row_ratios(_columns(rows, "_reference"))
    places = _places(rows, "", repetition), _places(rows, "_reference", repetition)
    ratios: dict[tuple[str, int], Ratio] = {}
    for name in _REASONS:
        has_both = sides[0][name].where & sides[1][name].where
        for i in (0, 1) if has_both.any() else ():
            ratios[name, i] = replace(sides[i][name], where=has_both).summed(places[i])
    found = {key: draws.estimate(r) if draws else r.estimate for key, r in ratios.items()}
    pairs = {}
    for name, reason in _REASONS.items():
        subject, reference = (found.get((name, i), reason) for i in (0, 1))
        if no_times and name != "mat":
            subject = reference = no_times
        pairs[name] = _pair(subject, reference, is_one_run=repetition.is_one_run)
    return CellPair(**pairs, num_completions=len(rows), num_samples=rows["cluster"].nunique())


def _columns(rows: DataFrame, suffix: str) -> dict[str, FloatArray]:
    return {name: rows[f"{name}{suffix}"].to_numpy(dtype=np.float64) for name in COLUMNS}


def _places(rows: DataFrame, suffix: str, repetition: Repetition) -> Places:
    """The rows of one side. Both are summed over the subject's samples, so that draws pair them."""
    units, requests = (rows[f"{name}{suffix}"].to_numpy() for name in ("unit", "request"))
    return Places(rows["cluster"].to_numpy(), units, requests, repetition.scope.number)


def mean_cell(cells: Sequence[CellPair], *, is_one_run: bool) -> CellPair:
    """Arithmetic means of the values over tasks, and their ratio; missing if a task is missing."""
    means = {}
    for name in _REASONS:
        pairs = [cell.pair(name) for cell in cells]
        subject = mean_over_tasks([pair.subject for pair in pairs])
        reference = mean_over_tasks([pair.reference for pair in pairs])
        means[name] = _pair(subject, reference, is_one_run=is_one_run)
    num_completions = sum(cell.num_completions for cell in cells)
    return CellPair(
        **means,
        num_completions=num_completions,
        num_samples=sum(cell.num_samples for cell in cells),
    )


def _pair(subject: Value, reference: Value, *, is_one_run: bool = False) -> Pair:
    if isinstance(subject, Missing) or isinstance(reference, Missing):
        return Pair(subject, reference, subject if isinstance(subject, Missing) else reference)
    return Pair(subject, reference, quotient(subject, reference, is_one_run=is_one_run))
