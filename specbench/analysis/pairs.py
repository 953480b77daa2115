"""One cell in two runs: each run's numbers, and their ratios over the very same completions.

A ratio is subject / reference. The bootstrap draws the same samples for both, so what a sample has
in both runs (its length, how well it can be guessed) cancels out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from specbench.analysis.cells import NO_BASELINE, NO_STEPS
from specbench.analysis.columns import Columns, cluster_indices, columns, sums
from specbench.analysis.stats import Draws, Estimate, FloatArray, Missing, Ratio, Value, mean
from specbench.types import Record

NO_SHARED = Missing("no shared completions")

Completion: TypeAlias = tuple[str, str, int, int]
Completions: TypeAlias = Mapping[Completion, Record]


@dataclass(frozen=True, slots=True)
class Pair:
    """One number in both runs. `ratio` is subject / reference, over the same samples."""

    subject: Value
    reference: Value
    ratio: Value


@dataclass(frozen=True, slots=True)
class CellPair:
    """One cell in both runs. `speedup` is each run's own, over its own vanilla. The counts are of
    what both runs finished: completions, and the samples that they belong to.
    """

    tokens_per_s: Pair
    speedup: Pair
    mat: Pair
    num_completions: int = 0
    num_samples: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """The measured completions of a cell in one run, and those of the run's vanilla."""

    own: Completions
    baseline: Completions


def pair_cell(
    subject: Side, reference: Side, draws: Draws | None = None, no_times: Missing | None = None
) -> CellPair:
    """The cell over the completions of both sides, with intervals where there are draws.

    `no_times` is why the times of a side count for nothing, if they do.
    """
    shared = [name for name in subject.own if name in reference.own]
    if not shared:
        blank = _blank(NO_SHARED)
        return CellPair(blank, blank, blank)
    clusters = cluster_indices([subject.own[name] for name in shared])
    sides = [_Numbers.of(side, shared) for side in (subject, reference)]
    rows = {
        "tokens_per_s": np.ones(len(shared), dtype=bool),
        "speedup": np.logical_and(*(side.base.tokens > 0 for side in sides)),
        "mat": np.logical_and(*(side.own.emitted > 0 for side in sides)),
    }
    ratios: dict[str, Ratio] = {}
    for name, picked in rows.items():
        if not picked.any():
            continue
        (top, bottom), (other_top, other_bottom) = (side.terms[name] for side in sides)
        fractions = {
            "subject": (top, bottom),
            "reference": (other_top, other_bottom),
            "ratio": ((*top, *other_bottom), (*bottom, *other_top)),
        }
        for part, fraction in fractions.items():
            both = (sums(clusters[picked], terms, picked) for terms in fraction)
            ratios[f"{name} {part}"] = Ratio(*both)
    found = draws.estimates(ratios) if draws else {key: r.estimate for key, r in ratios.items()}
    return CellPair(
        _blank(no_times) if no_times else _pair(found, "tokens_per_s", NO_SHARED),
        _blank(no_times) if no_times else _pair(found, "speedup", NO_BASELINE),
        _pair(found, "mat", NO_STEPS),
        len(shared),
        len(np.unique(clusters)),
    )


def mean_cell(cells: Sequence[CellPair]) -> CellPair:
    """The arithmetic means over tasks, of values and of ratios; none where a task is missing."""
    return CellPair(
        _mean_pair([cell.tokens_per_s for cell in cells]),
        _mean_pair([cell.speedup for cell in cells]),
        _mean_pair([cell.mat for cell in cells]),
        sum(cell.num_completions for cell in cells),
        sum(cell.num_samples for cell in cells),
    )


_PARTS = ("subject", "reference", "ratio")

_Terms: TypeAlias = tuple[FloatArray, ...]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A side's columns over the shared completions; zeros where vanilla has none."""

    own: Columns
    base: Columns

    @classmethod
    def of(cls, side: Side, shared: Sequence[Completion]) -> "_Numbers":
        own, base = ([records.get(n) for n in shared] for records in (side.own, side.baseline))
        return cls(columns(own), columns(base))

    @property
    def terms(self) -> dict[str, tuple[_Terms, _Terms]]:
        """For each number what is multiplied, and what divides."""
        own, base = self.own, self.base
        return {
            "tokens_per_s": ((own.tokens,), (own.wall_s,)),
            "speedup": ((base.wall_s, own.tokens), (base.tokens, own.wall_s)),
            "mat": ((own.emitted,), (own.steps,)),
        }


def _pair(found: Mapping[str, Estimate], name: str, otherwise: Missing) -> Pair:
    subject, reference, ratio = (found.get(f"{name} {part}", otherwise) for part in _PARTS)
    return Pair(subject, reference, ratio)


def _blank(reason: Missing) -> Pair:
    return Pair(reason, reason, reason)


def _mean_pair(pairs: Sequence[Pair]) -> Pair:
    subject, reference, ratio = (_mean([getattr(p, part) for p in pairs]) for part in _PARTS)
    return Pair(subject, reference, ratio)


def _mean(values: Sequence[Value]) -> Value:
    known = [value for value in values if isinstance(value, Estimate)]
    if known and len(known) == len(values):
        return mean(known)
    if known:
        return Missing(f"{len(known)} of {len(values)} tasks")
    return next(value for value in values if isinstance(value, Missing))
