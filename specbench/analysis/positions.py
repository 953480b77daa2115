"""Acceptance by position: how often the guess at each depth below the pending token was accepted.

Depth 1 is the first guessed token: the first of a chain, any child of the root in a tree. Both
shares are of steps, whatever a step guessed: one that guessed nothing at a depth accepted nothing
there. So 1 + the sum of the unconditional shares is the mean accepted tokens (but for cut steps),
and the numbers can be compared between chains and trees.

A step that ended its completion emitted a tokens and shows a - 1 accepted guesses; whether the last
token was one more guess or the target's own is not recorded, since EOS and the budget end both.
Such a step counts up to depth a - 1 and is left out from there on; the unconditional share is the
product of the conditional ones (Kaplan and Meier 1958), which assumes of the steps left out only
that they are like the others. A step that emitted as many tokens as its tree had nodes guessed no
more, so nothing is left out of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specbench.analysis.columns import IntArray, Table
from specbench.analysis.stats import Draws, Estimate, FloatArray, effective_number, interval


@dataclass(frozen=True, slots=True)
class Position:
    """One depth. `num_reached` counts the steps that accepted all above it and whose outcome here
    is known, `num_accepted` those of them that accepted here. `conditional` is their ratio,
    `unconditional` the share of all steps that accept at least this deep.
    """

    depth: int
    num_reached: int
    num_accepted: int
    conditional: Estimate
    unconditional: Estimate


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Steps by emitted tokens: [clusters, longest + 1] each, column a for steps that emitted a.

    `cut` are the steps among `steps` of which it is not known whether a guess at depth a was
    accepted.
    """

    steps: IntArray
    cut: IntArray

    @property
    def histogram(self) -> dict[int, int]:
        """Emitted tokens -> number of steps."""
        totals = self.steps.sum(0).tolist()
        return {length: count for length, count in enumerate(totals) if count}


def count_steps(table: Table, rows: IntArray) -> StepCounts:
    """The steps of these records."""
    _, clusters = np.unique(table.clusters[rows], return_inverse=True)
    per_record = table.columns.steps[rows].astype(np.intp)
    lengths = table.lengths(rows)
    width = int(lengths.max(initial=0)) + 1
    size = (int(clusters.max(initial=-1)) + 1) * width
    is_cut = table.is_cut[rows]
    last = per_record.cumsum()[is_cut] - 1
    steps = np.bincount(np.repeat(clusters, per_record) * width + lengths, minlength=size)
    cut = np.bincount(clusters[is_cut] * width + lengths[last], minlength=size)
    return StepCounts(steps.reshape(-1, width), cut.reshape(-1, width))


def acceptance(counts: StepCounts, draws: Draws | None = None) -> tuple[Position, ...]:
    """Every depth at which anything was accepted, with intervals where there are draws."""
    reached, accepted = _depths(counts)
    deepest = int((accepted.sum(0) > 0).sum())
    reached, accepted = reached[:, :deepest], accepted[:, :deepest]
    if not deepest:
        return ()
    num_reached, num_accepted = reached.sum(0), accepted.sum(0)
    conditional = num_accepted / num_reached
    resamples = None
    if draws is not None and len(reached) > 1:
        sums = draws.sums(np.hstack([accepted, reached]))
        with np.errstate(invalid="ignore", divide="ignore"):
            resamples = sums[:, :deepest] / sums[:, deepest:]
    effective = effective_number(reached[:, :1])
    return tuple(
        Position(
            i + 1,
            int(num_reached[i]),
            int(num_accepted[i]),
            _share(float(conditional[i]), resamples, i, effective),
            _share(float(conditional[: i + 1].prod()), _products(resamples), i, effective),
        )
        for i in range(deepest)
    )


def _depths(counts: StepCounts) -> tuple[FloatArray, FloatArray]:
    """Steps that reached, and that accepted at, depths 1, 2, ...: [clusters, depths] each."""
    at_least = counts.steps[:, ::-1].cumsum(1)[:, ::-1].astype(np.float64)  # column a: >= a tokens
    return at_least[:, 1:-1] - counts.cut[:, 1:-1], at_least[:, 2:]


def _products(resamples: FloatArray | None) -> FloatArray | None:
    return None if resamples is None else resamples.cumprod(1)


def _share(value: float, resamples: FloatArray | None, i: int, effective: float) -> Estimate:
    """A share with its interval; none where some resample has no step that came so deep.

    The resamples are widened as `Draws.estimates` does, on the linear scale since a share may be 0.
    """
    degrees = effective - 1
    if resamples is None or degrees <= 0 or not np.isfinite(resamples[:, i]).all():
        return Estimate(value)
    spread = (resamples[:, i] - value) * np.sqrt(effective / degrees)
    own = np.clip(value + spread, 0.0, 1.0)
    return Estimate(value, interval(own, degrees), own, degrees)
