"""Results of an audit, by difference and by method: rounding (numerics) or a bug."""

from dataclasses import dataclass

from specbench.analysis.divergence import Agreement, Divergence
from specbench.log.audit import AuditStatus, AuditTest, MethodAudit

ALPHA = 0.01
"""A corrected p-value below this is a difference between distributions."""

EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Machine epsilon of each dtype."""
_FACTOR = {"float32": 64.0, "bfloat16": 8.0, "float16": 8.0}
"""Most epsilons between two logits that rounding explains; see `near_tie`."""


def near_tie(dtype: str, scale: float) -> float:
    """The largest gap between two logits that rounding explains.

    A token's logits differ when the same tokens pass through the model in other shapes: a tree
    of 60 nodes, one token, a whole prompt. Every number that the model stores has a relative
    error of up to the dtype's machine epsilon, so the error of a logit is a multiple of
    epsilon times the size of the logits (`scale`: the largest magnitude among the 100 best).
    The multiple was measured on `tiny` between prefill, tree and single tokens: the gap
    between two of the 20 best tokens moved by up to 6 epsilon x scale in bfloat16, 4 in
    float16 and 31 in float32, where sums are rounded like all else, while half precision sums
    in float32. The thresholds, 8 and 64, leave some room, since rounding errors grow like the
    root of the number of layers.

    In bfloat16 this is about a whole logit, and a bug can hide below it. In float32
    (`specbench audit --dtype float32`) it cannot.
    """
    return _FACTOR[dtype] * EPSILON[dtype] * scale


def allowed_deviation(dtype: str, calibrated: float | None = None) -> float:
    """The largest deviation of a logit that rounding explains, in epsilon times the logits' scale.

    It is four times the deviation that was measured on chains of several lengths (`calibrated`),
    but at least the factor of `near_tie`, and at most sixteen times this factor. Without such a
    measurement it is four times the factor.

    On `tiny` in float32, with torch's operations, a sound tree stayed below 57 in 77,000 sampled
    tokens. Stale keys in one layer gave 56,000, wrong positions 390,000.
    """
    factor = _FACTOR[dtype]
    measured = factor if calibrated is None else calibrated
    return min(max(factor, 4 * measured), 16 * factor)


def counted(name: str, num: int, num_wrong: int, unit: str = "answers") -> AuditTest:
    """A test of a method's contract that fails if anything is wrong."""
    return AuditTest("answers", name, num, num_wrong, f"wrong {unit}", limit=0.0)


PLANTED = "acceptance of planted guesses"
"""The name of the test for the acceptance of right tokens in a method's trees."""


def is_idle(result: MethodAudit) -> bool:
    """True for a method that proposed nothing, so that no right token could be planted."""
    return any(test.name == PLANTED and not test.num for test in result.tests)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference from vanilla."""

    divergence: Divergence
    threshold: float
    """The largest gap that rounding explains."""
    gap: float | None = None
    """Gap from the method's token up to the best one in the target's logits; None if one side
    ended early.
    """
    baseline_gap: float | None = None
    """Gap from vanilla's token up to the best one; None if one side ended early."""
    is_same_again: bool | None = None
    """The step, run again, gave vanilla's tokens; None if it was not run again."""
    is_bug_again: bool = False
    """The step, run again, differed by more than rounding."""

    @property
    def status(self) -> AuditStatus:
        if self.gap is None or self.baseline_gap is None or self.is_bug_again:
            return "bug"
        return "bug" if max(self.gap, self.baseline_gap) > self.threshold else "numerics"


@dataclass(frozen=True, slots=True)
class GreedyAudit:
    """A method at temperature 0."""

    agreement: Agreement
    differences: tuple[Difference, ...]
    is_lossless: bool
    """The method claims to be lossless."""

    @property
    def status(self) -> AuditStatus:
        """The worst status of its differences."""
        statuses = {difference.status for difference in self.differences}
        if "bug" in statuses:
            return "bug" if self.is_lossless else "lossy"
        return "numerics" if statuses else "identical"

    @property
    def largest_gap(self) -> float | None:
        """The largest gap of its differences; None if none has a gap."""
        return max((d.gap for d in self.differences if d.gap is not None), default=None)


@dataclass(frozen=True, slots=True)
class Audit:
    """The results of an audit of a run."""

    dtype: str
    """The run's dtype."""
    recheck_dtype: str | None
    """The dtype in which steps were run again, if any were."""
    greedy: tuple[GreedyAudit, ...]
    methods: tuple[MethodAudit, ...] = ()
    """The tests of logits, drafts, tokens and rules."""
    device: str = ""
    """The audit's device; empty if no model was needed."""
    unjudged: tuple[str, ...] = ()
    """Requested methods without a verdict, with the reason, in words."""

    @property
    def statuses(self) -> frozenset[AuditStatus]:
        """The statuses that occur."""
        greedy = {result.status for result in self.greedy}
        return frozenset(greedy | {result.status for result in self.methods})

    @property
    def has_bug(self) -> bool:
        return "bug" in self.statuses

    @property
    def exit_code(self) -> int:
        if self.has_bug:
            return 1
        return 3 if self.unjudged else 0
