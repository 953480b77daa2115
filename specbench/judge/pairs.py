"""One cell in two runs: the numbers of each run, and their ratios over the same requests.

A ratio is subject / reference. The bootstrap draws the same samples for both runs, so that traits
of a sample (its length, how predictable it is) cancel out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from specbench.analysis.cells import NO_BASELINE, NO_STEPS
from specbench.analysis.frames import REQUEST_KEY
from specbench.analysis.metrics import mean_over_tasks
from specbench.analysis.records import BoolArray, cluster_sums
from specbench.analysis.stats.bootstrap import (
    Draws,
    Estimate,
    FloatArray,
    Missing,
    Ratio,
    Value,
    quotient,
)
from specbench.analysis.stats.effects import EXACT
from specbench.analysis.units import ONE_PASS, Scope, log_ratios
from specbench.log.loads import Load

if TYPE_CHECKING:
    from pandas import DataFrame

NO_SHARED = Missing("no shared completions")

_REQUEST = [name for name in REQUEST_KEY if name not in Load._fields]
"""Columns that identify a request in two runs at one load; runs of the engine have no load."""
_PARTS = ("subject", "reference", "ratio")
_NUMBERS = [
    "num_tokens", "mat_emitted", "mat_steps", "wall_s", "baseline_num_tokens", "baseline_wall_s",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Repetition:
    """The passes or runs that both sides have. `scope` says what intervals of times cover.

    `is_one_run` if both are the same run, so that passes are paired.
    """

    scope: Scope = ONE_PASS
    is_one_run: bool = False

    @property
    def is_judged(self) -> bool:
        """True if a difference in speed can be significant: not with one run a side."""
        return self.is_one_run or (self.scope.kind == "runs" and self.scope.is_estimated)


ONCE = Repetition()


@dataclass(frozen=True, slots=True)
class Pair:
    """One number in both runs. `ratio` is subject / reference, over the same samples."""

    subject: Value
    reference: Value
    ratio: Value


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


def pair_requests(
    subject: DataFrame, reference: DataFrame, methods: Mapping[str, str]
) -> DataFrame:
    """The requests that both runs finished, a row each, in the order of the subject.

    Both frames are of a `RecordTable`. `methods` maps each method of the subject to the method
    of the reference that it is compared with. Columns of the reference end in `_reference`; `row`
    is the row of the record in its table.
    """
    names = {theirs: own for own, theirs in methods.items()}
    own = _measured(subject, methods)
    theirs = _measured(reference, names)
    theirs["method"] = theirs["method"].map(names).astype(object)
    return own.merge(theirs, on=["method", *_REQUEST], suffixes=("", "_reference"))


def _measured(frame: DataFrame, methods: Collection[str]) -> DataFrame:
    rows = frame[frame["is_measured"] & frame["method"].isin(list(methods))]
    columns = rows[["method", *_REQUEST, "cluster", "unit", "request", *_NUMBERS]]
    named = columns.astype(dict.fromkeys(("method", "task", "sample_id"), object))
    return named.assign(row=named.index)


def pair_cell(
    rows: DataFrame,
    draws: Draws | None = None,
    no_times: Missing | None = None,
    repetition: Repetition = ONCE,
) -> CellPair:
    """A cell from its rows of `pair_requests`, with intervals if there are draws.

    `no_times` is the reason why the times of a run are no evidence, if they are not.
    """
    if not len(rows):
        blank = _missing(NO_SHARED)
        return CellPair(blank, blank, blank)
    clusters = rows["cluster"].to_numpy()
    terms, reference_terms = _terms(rows, ""), _terms(rows, "_reference")
    ratios: dict[str, Ratio] = {}
    for name, counted in _counted(rows).items():
        if not counted.any():
            continue
        (top, bottom), (other_top, other_bottom) = terms[name], reference_terms[name]
        fractions = (
            (top, bottom),
            (other_top, other_bottom),
            ((*top, *other_bottom), (*bottom, *other_top)),
        )
        is_time = name != "mat"
        groups = _units(rows[counted], name, repetition) if is_time else ((), (), ())
        for part, fraction, units in zip(_PARTS, fractions, groups, strict=True):
            above, below = (
                cluster_sums(clusters[counted], [term[counted] for term in side])
                for side in fraction
            )
            machine = None if is_time else EXACT
            ratios[f"{name} {part}"] = Ratio(above, below, units, machine)
    found = draws.estimates(ratios) if draws else {key: r.estimate for key, r in ratios.items()}
    return CellPair(
        tokens_per_s=_missing(no_times) if no_times else _pair(found, "tokens_per_s", NO_SHARED),
        speedup=_missing(no_times) if no_times else _pair(found, "speedup", NO_BASELINE),
        mat=_pair(found, "mat", NO_STEPS),
        num_completions=len(rows),
        num_samples=rows["cluster"].nunique(),
    )


def _units(
    rows: DataFrame, name: str, repetition: Repetition
) -> tuple[tuple[FloatArray, ...], ...]:
    """The units of subject, reference and ratio, for the rows that count."""
    sides = [
        log_ratios(
            rows[f"unit{suffix}"].to_numpy(),
            rows[f"request{suffix}"].to_numpy(),
            _terms(rows, suffix)[name],
            repetition.scope.number,
        )
        for suffix in ("", "_reference")
    ]
    own, theirs = sides
    pairs = tuple(mine - other for mine, other in zip(own, theirs, strict=True))
    return own, theirs, pairs if repetition.is_one_run else (*own, *theirs)


def mean_cell(cells: Sequence[CellPair], *, is_one_run: bool = False) -> CellPair:
    """Arithmetic means of the values over tasks, and their ratio; missing if a task is missing."""
    return CellPair(
        tokens_per_s=_mean_pair([cell.tokens_per_s for cell in cells], is_one_run),
        speedup=_mean_pair([cell.speedup for cell in cells], is_one_run),
        mat=_mean_pair([cell.mat for cell in cells], is_one_run),
        num_completions=sum(cell.num_completions for cell in cells),
        num_samples=sum(cell.num_samples for cell in cells),
    )


_Factors: TypeAlias = tuple[FloatArray, ...]


def _terms(rows: DataFrame, suffix: str) -> dict[str, tuple[_Factors, _Factors]]:
    """Factors of the numerator and of the denominator of each number of one run."""
    tokens, emitted, steps, wall_s, base_tokens, base_wall_s = (
        rows[f"{name}{suffix}"].to_numpy(dtype=np.float64) for name in _NUMBERS
    )
    return {
        "tokens_per_s": ((tokens,), (wall_s,)),
        "speedup": ((base_wall_s, tokens), (base_tokens, wall_s)),
        "mat": ((emitted,), (steps,)),
    }


def _counted(rows: DataFrame) -> dict[str, BoolArray]:
    """The rows that each number is over: those with all that it needs, in both runs."""
    needs = {
        "tokens_per_s": "num_tokens",
        "speedup": "baseline_num_tokens",
        "mat": "mat_emitted",
    }
    return {
        name: ((rows[need] > 0) & (rows[f"{need}_reference"] > 0)).to_numpy()
        for name, need in needs.items()
    }


def _pair(found: Mapping[str, Estimate], name: str, otherwise: Missing) -> Pair:
    subject, reference, ratio = (found.get(f"{name} {part}", otherwise) for part in _PARTS)
    return Pair(subject, reference, ratio)


def _missing(reason: Missing) -> Pair:
    return Pair(reason, reason, reason)


def _mean_pair(pairs: Sequence[Pair], is_one_run: bool) -> Pair:
    subject = mean_over_tasks([pair.subject for pair in pairs])
    reference = mean_over_tasks([pair.reference for pair in pairs])
    if isinstance(subject, Missing) or isinstance(reference, Missing):
        return Pair(subject, reference, subject if isinstance(subject, Missing) else reference)
    return Pair(subject, reference, quotient(subject, reference, is_one_run=is_one_run))
