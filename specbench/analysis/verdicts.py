"""What an audit says: per difference and per method, numerics or bug.

Knows numbers and thresholds. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.analysis.divergence import Agreement, Divergence

Verdict = Literal["identical", "numerics", "no difference", "bug", "lossy"]
"""Greedy: `identical`, or different by the `numerics`, or by a `bug`. Sampled: `no difference`
was found between the distributions, or a `bug`. What would be a bug is `lossy` in a method that
does not claim to give vanilla's output."""

ALPHA = 0.01
"""A corrected p-value below this is a difference between distributions."""

_UNIT = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
_FACTOR = {"float32": 64.0, "bfloat16": 8.0, "float16": 8.0}


def near_tie(dtype: str, scale: float) -> float:
    """The gap between two logits up to which rounding decides which is larger.

    One token's logits come out differently when the same tokens pass through the model in other
    shapes: a tree of 60 nodes, one token, a whole prompt. Every number that the model stores is
    rounded to a relative error of up to the dtype's machine epsilon, so the error of a logit is a
    multiple of epsilon times the size of the logits (`scale`: the largest magnitude among the 100
    best). The multiple was measured on `tiny` between prefill, tree and single tokens: the gap
    between two of the 20 best tokens moved by up to 6 epsilon x scale in bfloat16, 4 in float16 and
    31 in float32, where sums are rounded like all else while half precision sums in float32. The
    thresholds, 8 and 64, leave some room: rounding errors add up like the root of the layers.

    In bfloat16 this is about a whole logit: a bug can hide below it. It is a bug all the same if it
    is there in float32 (`specbench audit --dtype float32`).
    """
    return _FACTOR[dtype] * _UNIT[dtype] * scale


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference, judged. `gap` is how far the method's token lies below the best one in the
    target's logits, `baseline_gap` vanilla's; both None where one side ended early. `is_same_again`
    tells whether the step, run again in the dtype of the re-check, gave vanilla's tokens.
    """

    divergence: Divergence
    gap: float | None
    baseline_gap: float | None
    threshold: float
    is_same_again: bool | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class GreedyAudit:
    """A method at temperature 0."""

    agreement: Agreement
    findings: tuple[Finding, ...]
    verdict: Verdict

    @property
    def largest_gap(self) -> float | None:
        return max((f.gap for f in self.findings if f.gap is not None), default=None)


@dataclass(frozen=True, slots=True)
class SampledAudit:
    """A method at a temperature above 0. `p_value` is corrected for the number of tests."""

    method: str
    temperature: float
    num_contexts: int
    num_draws: int
    p_value: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Audit:
    """All verdicts on a run. `dtype` is the run's, `recheck_dtype` that of the steps run again."""

    run_id: str
    dtype: str
    recheck_dtype: str | None
    greedy: tuple[GreedyAudit, ...]
    sampled: tuple[SampledAudit, ...]

    @property
    def verdicts(self) -> frozenset[Verdict]:
        """Those that occur."""
        greedy, sampled = (
            (one.verdict for one in self.greedy),
            (one.verdict for one in self.sampled),
        )
        return frozenset([*greedy, *sampled])

    @property
    def has_bug(self) -> bool:
        return "bug" in self.verdicts


def judge(
    divergence: Divergence,
    gaps: tuple[float, float] | None,
    threshold: float,
    *,
    is_bug_again: bool = False,
    is_same_again: bool | None = None,
) -> Finding:
    """The verdict on one difference, from how far vanilla's and the method's token lie below the
    best one (`gaps`, in this order; None where one side had ended).
    """
    is_bug = gaps is None or max(gaps) > threshold or is_bug_again
    return Finding(
        divergence,
        gaps[1] if gaps else None,
        gaps[0] if gaps else None,
        threshold,
        is_same_again,
        "bug" if is_bug else "numerics",
    )


def greedy_audit(
    agreement: Agreement, findings: Sequence[Finding], *, is_lossless: bool
) -> GreedyAudit:
    """The verdict on a method: the worst of its differences."""
    verdicts = {finding.verdict for finding in findings}
    verdict: Verdict = "identical"
    if verdicts:
        verdict = "numerics" if "bug" not in verdicts else "bug" if is_lossless else "lossy"
    return GreedyAudit(agreement, tuple(findings), verdict)


def sampled_verdict(p_value: float, *, is_lossless: bool) -> Verdict:
    """The verdict on a corrected p-value."""
    if p_value >= ALPHA:
        return "no difference"
    return "bug" if is_lossless else "lossy"
