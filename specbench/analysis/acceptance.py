"""Acceptance by depth: how often the guess at each depth below the pending token was accepted.

Depth 1 is the first guessed token: the first of a chain, any child of the root in a tree. Both
shares are of steps, so that chains and trees compare: a step without a guess at a depth
accepted nothing there. 1 + the sum of the unconditional shares is the mean accepted tokens,
except for cut steps.

A step that ended its completion emitted a tokens and shows a - 1 accepted guesses. The record
does not tell whether the last token was one more guess or the target's own, since EOS and the
budget end both. Such a step counts up to depth a - 1 and is left out from there on. The
unconditional share is the product of the conditional ones (Kaplan and Meier 1958), which
assumes that the steps left out are like the others. If a step emitted as many tokens as its
tree has nodes, nothing is left out.
"""

from dataclasses import dataclass

import numpy as np

from specbench.analysis.records import RecordTable
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Draws, effective_number
from specbench.analysis.stats.estimates import Estimate, interval


@dataclass(frozen=True, slots=True)
class DepthAcceptance:
    """Acceptance at one depth.

    `num_reached` counts steps that accepted every guess above and have a known outcome here;
    `num_accepted` of them accepted here. `conditional` is the ratio of the two,
    `unconditional` the share of all steps that accept at least this deep.
    """

    depth: int
    num_reached: int
    num_accepted: int
    conditional: Estimate
    unconditional: Estimate


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Numbers of steps by emitted tokens: [clusters, longest + 1], column a for a tokens.

    `cut` counts the steps among `steps` whose outcome at depth a is unknown.
    """

    steps: IntArray
    cut: IntArray

    @property
    def histogram(self) -> dict[int, int]:
        """Emitted tokens -> number of steps."""
        totals = self.steps.sum(0).tolist()
        return {length: count for length, count in enumerate(totals) if count}


def count_steps(table: RecordTable, rows: IntArray) -> StepCounts:
    """Count the steps of these rows."""
    names, num_steps, is_cut = table.values(rows, "cluster", "num_steps", "is_cut")
    _, clusters = np.unique(names, return_inverse=True)
    lengths = table.lengths(rows)
    width = int(lengths.max(initial=0)) + 1
    size = (int(clusters.max(initial=-1)) + 1) * width
    last = num_steps.cumsum()[is_cut] - 1
    steps = np.bincount(np.repeat(clusters, num_steps) * width + lengths, minlength=size)
    cut = np.bincount(clusters[is_cut] * width + lengths[last], minlength=size)
    return StepCounts(steps.reshape(-1, width), cut.reshape(-1, width))


def acceptance_by_depth(counts: StepCounts, draws: Draws | None) -> tuple[DepthAcceptance, ...]:
    """Every depth at which anything was accepted, with intervals if there are draws."""
    # [clusters, longest + 1], column a: steps that emitted at least a tokens
    at_least = counts.steps[:, ::-1].cumsum(1)[:, ::-1].astype(np.float64)
    # A step came to depth d if it emitted d tokens or more: d - 1 guesses and the target's own.
    # It accepted there if it emitted one more.
    depths = np.arange(1, at_least.shape[1] - 1)
    reached = at_least[:, depths] - counts.cut[:, depths]
    accepted = at_least[:, depths + 1]
    num_depths = int((accepted.sum(0) > 0).sum())
    if not num_depths:
        return ()
    reached, accepted = reached[:, :num_depths], accepted[:, :num_depths]
    num_reached, num_accepted = reached.sum(0), accepted.sum(0)
    conditional = num_accepted / num_reached
    unconditional = conditional.cumprod()
    resamples = np.full((1, num_depths), np.nan)
    if draws is not None and len(reached) > 1:
        sums = draws.sums(np.hstack([accepted, reached]))
        with np.errstate(invalid="ignore", divide="ignore"):
            resamples = sums[:, :num_depths] / sums[:, num_depths:]
    products = resamples.cumprod(1)
    effective = effective_number(reached[:, :1])
    return tuple(
        DepthAcceptance(
            depth=i + 1,
            num_reached=int(num_reached[i]),
            num_accepted=int(num_accepted[i]),
            conditional=_share(float(conditional[i]), resamples[:, i], effective),
            unconditional=_share(float(unconditional[i]), products[:, i], effective),
        )
        for i in range(num_depths)
    )


def _share(value: float, resamples: FloatArray, effective: float) -> Estimate:
    """A share with its interval; without one if a resample has no step that came so deep.

    The resamples are widened as in `Draws.estimate`, but on the linear scale: a share may be 0.
    """
    degrees = effective - 1
    if degrees <= 0 or not np.isfinite(resamples).all():
        return Estimate(value)
    widened = value + (resamples - value) * np.sqrt(effective / degrees)
    shares = np.clip(widened, 0.0, 1.0)
    return Estimate(value, interval(shares, degrees), shares, degrees)
