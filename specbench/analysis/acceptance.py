"""Compute acceptance by depth: how often draft tokens at a depth of a chain or tree were accepted.

Depth 1 is the first draft token: the first of a chain, any child of the root in a tree. The
conditional share at a depth is a share of the steps that came to this depth; the unconditional one
is a share of all steps. A step without a draft token at a depth accepted nothing there, so chains
and trees can be compared. The mean accepted tokens are 1 + the sum of the unconditional shares,
except for the effect of steps that end a completion.

Suppose that such a step emitted a tokens. Then a - 1 of them are accepted draft tokens. The record
does not say whether the last token was one more draft token or the target's own, since EOS and the
budget end both. So the step counts at depths 1 to a - 1 and is left out at greater depths. The
unconditional share is the product of the conditional ones (Kaplan and Meier 1958), which assumes
that the steps left out are like the others. A step that emitted as many tokens as its tree has
nodes counts at every depth, because its last token is the target's.
"""

from dataclasses import dataclass

import numpy as np

from specbench.analysis.records import RecordTable
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Draws, effective_number
from specbench.analysis.stats.estimates import Estimate, interval


@dataclass(frozen=True, slots=True)
class DepthAcceptance:
    """Acceptance at one depth."""

    depth: int

    num_reached: int
    """Steps that accepted a token at each smaller depth and have a known outcome at this depth."""

    num_accepted: int
    """The number of the `num_reached` steps that accepted a draft token at this depth."""

    conditional: Estimate
    """`num_accepted` / `num_reached`."""

    unconditional: Estimate
    """The share of all steps that accepted a draft token at this depth."""


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Number of steps for each cluster and each number of emitted tokens [clusters, longest + 1].

    Column a counts the steps that emitted a tokens; no step emitted more than `longest`.
    """

    steps: IntArray

    cut: IntArray
    """The number of `steps` with an unknown outcome at depth a: their last token may be drafted."""

    @property
    def histogram(self) -> dict[int, int]:
        """Number of emitted tokens -> number of steps."""
        totals = self.steps.sum(0).tolist()
        return {length: count for length, count in enumerate(totals) if count}


def count_steps(table: RecordTable, rows: IntArray) -> StepCounts:
    """Count the steps of the records in these rows by sample and by number of emitted tokens."""
    # For each row: its sample, its steps, and True if the outcome of its last step is unknown.
    samples, num_steps, is_cut = table.values(rows, "cluster", "num_steps", "is_cut")
    _, clusters = np.unique(samples, return_inverse=True)  # the samples, numbered from 0 [rows]
    lengths = table.lengths(rows)  # emitted tokens of each step, row after row [steps]
    # tokens that the last step emitted, for each row with an unknown outcome
    cut_lengths = lengths[num_steps.cumsum()[is_cut] - 1]
    shape = (1 + int(clusters.max(initial=-1)), 1 + int(lengths.max(initial=0)))
    return StepCounts(
        steps=_count_pairs(np.repeat(clusters, num_steps), lengths, shape),
        cut=_count_pairs(clusters[is_cut], cut_lengths, shape),
    )


def _count_pairs(rows: IntArray, columns: IntArray, shape: tuple[int, int]) -> IntArray:
    """Count the occurrences of each (row, column) pair. The result has this shape."""
    cells = np.ravel_multi_index((rows, columns), shape)
    num_cells = shape[0] * shape[1]
    return np.bincount(cells, minlength=num_cells).reshape(shape)


def acceptance_by_depth(counts: StepCounts, draws: Draws | None) -> tuple[DepthAcceptance, ...]:
    """Compute the acceptance at each depth, down to the last one at which a step accepted a token.

    The result is empty if no step accepted a draft token. Both shares are shares of steps that
    accepted a draft token at a depth: the conditional one among the steps that came to the depth
    and have a known outcome there, the unconditional one among all steps.

    Args:
        counts: numbers of steps [clusters, longest + 1]; `longest` is the largest number of tokens
            that a step emitted. A cluster has all answers to a sample, or to samples with the same
            prompt. Column a of `counts.steps` counts the steps that
            emitted a tokens; column a of `counts.cut` counts those among them whose outcome at
            depth a is unknown.
        draws: resamples the clusters, for intervals. None for no intervals.
    """
    # [clusters, longest + 1], column a: number of steps that emitted at least a tokens
    at_least = counts.steps[:, ::-1].cumsum(1)[:, ::-1].astype(np.float64)
    # A step that emitted a tokens accepted a - 1 draft tokens; the last token is the target's (or
    # unknown, if the step is cut). So a step came to depth d if it emitted at least d tokens, and
    # accepted a draft token at depth d if it emitted at least d + 1.
    depths = np.arange(1, at_least.shape[1] - 1)  # depth 1: the first draft token
    accepted_at_all_depths = at_least[:, depths + 1]  # numbers of steps [clusters, all depths]
    # Numbers of steps fall with the depth, so the depths with accepted tokens come first.
    num_depths = int((accepted_at_all_depths.sum(0) > 0).sum())
    if not num_depths:
        return ()
    # Numbers of steps that accepted a draft token at a depth, and of steps that came to the depth
    # and have a known outcome there. Each is [clusters, depths].
    steps_accepted = accepted_at_all_depths[:, :num_depths]
    steps_reached = (at_least[:, depths] - counts.cut[:, depths])[:, :num_depths]
    num_accepted = steps_accepted.sum(0)  # over all clusters [depths]
    num_reached = steps_reached.sum(0)  # [depths]
    conditional_shares = num_accepted / num_reached  # [depths]
    unconditional_shares = conditional_shares.cumprod()  # Kaplan and Meier's estimator [depths]
    # Shares in each resample [num_resamples, depths]; NaN if there are no intervals.
    conditional_resamples = _resample(steps_accepted, steps_reached, draws)
    unconditional_resamples = conditional_resamples.cumprod(1)
    # The number of clusters of equal size that would be as informative, at depth 1 (column 0).
    num_effective = effective_number(steps_reached[:, :1])
    return tuple(
        DepthAcceptance(
            depth=index + 1,  # columns are numbered from 0, depths from 1
            num_reached=int(num_reached[index]),
            num_accepted=int(num_accepted[index]),
            conditional=share_estimate(
                float(conditional_shares[index]), conditional_resamples[:, index], num_effective
            ),
            unconditional=share_estimate(
                float(unconditional_shares[index]), unconditional_resamples[:, index], num_effective
            ),
        )
        for index in range(num_depths)
    )


def _resample(accepted: FloatArray, reached: FloatArray, draws: Draws | None) -> FloatArray:
    """Compute the share of steps that accepted a token, in each resample [num_resamples, depths].

    `accepted` and `reached` are numbers of steps [clusters, depths]: those that accepted a draft
    token at the depth, and those that came to the depth. The result has one row of NaN if there are
    no draws or fewer than two clusters.
    """
    num_clusters, num_depths = accepted.shape
    if draws is None or num_clusters < 2:
        return np.full((1, num_depths), np.nan)
    sums = draws.sums(np.hstack([accepted, reached]))  # [num_resamples, 2 depths]
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may lack steps at a depth
        return sums[:, :num_depths] / sums[:, num_depths:]


def share_estimate(share: float, resamples: FloatArray, num_effective: float) -> Estimate:
    """Make the estimate of a share of steps, with an interval from its resamples [num_resamples].

    `num_effective` is the effective number n of clusters. The resamples are widened by
    sqrt(n / (n - 1)) as in `Draws.estimate`, but not on the log scale, since a share may be 0. The
    interval is missing if a resample is not finite (it has no steps), or with too few clusters.
    """
    degrees = num_effective - 1  # degrees of freedom
    if degrees <= 0 or not np.isfinite(resamples).all():
        return Estimate(share)
    widened = share + (resamples - share) * np.sqrt(num_effective / degrees)  # [num_resamples]
    shares = np.clip(widened, 0.0, 1.0)
    return Estimate(share, interval(shares, degrees), shares, degrees)
