"""Results of an audit: decide if a difference comes from rounding or from a bug."""

from dataclasses import dataclass

from specbench.analysis.divergence import Agreement, Divergence
from specbench.log.audit import AuditStatus, AuditTest, MethodAudit

ALPHA = 0.01
"""A corrected p-value below this is a difference between distributions."""

EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Machine epsilon of each dtype."""
_FACTOR = {"float32": 64.0, "bfloat16": 8.0, "float16": 8.0}
"""The largest gap between two logits that rounding explains, in epsilons (see `near_tie`)."""


def near_tie(dtype: str, scale: float) -> float:
    """The largest gap between two logits that rounding explains.

    The logits after a token differ slightly when the same tokens pass through the model in other
    shapes: a tree of 60 nodes, one token, a whole prompt. Every number that the model stores has a
    relative error of up to the dtype's machine epsilon, so the error of a logit is a multiple of
    epsilon times the size of the logits (`scale`: the largest magnitude among the 100 best). The
    multiple was measured on `tiny` between prefill, tree and single tokens: the gap between two of
    the 20 best tokens moved by up to 6 epsilon x scale in bfloat16, 4 in float16 and 31 in float32.
    The last is larger because float32 also rounds the sums, while half precision sums in float32,
    whose epsilon is much smaller. The thresholds, 8 and 64, leave some room, since rounding errors
    grow like the square root of the number of layers.

    In bfloat16 the gap can be a whole logit, which may hide a bug. In float32
    (`specbench audit --dtype float32`) it is some 8,000 times smaller.
    """
    return _FACTOR[dtype] * EPSILON[dtype] * scale


def allowed_deviation(dtype: str, calibrated: float | None = None) -> float:
    """The largest deviation of a logit that rounding explains, in epsilon times the logits' scale.

    It is four times the deviation that was measured on chains of several lengths (`calibrated`),
    but at least the factor of `near_tie`, and at most sixteen times this factor. Without such a
    measurement it is four times the factor.

    On `tiny` in float32, with torch's operations, correct trees deviated by less than 57 over
    77,000 sampled tokens. Stale keys in one layer caused a deviation of 56,000, and wrong positions
    one of 390,000.
    """
    factor = _FACTOR[dtype]
    measured = factor if calibrated is None else calibrated
    return min(max(factor, 4 * measured), 16 * factor)


def counted(name: str, num: int, num_wrong: int, unit: str = "answers") -> AuditTest:
    """A test in a contract that fails if any of `num` answers is wrong. `unit` says what is
    counted, if not answers.
    """
    return AuditTest("answers", name, num, num_wrong, f"wrong {unit}", limit=0.0)


PLANTED = "acceptance of planted draft tokens"
"""The name of the test for the acceptance of right tokens in a method's trees."""


def is_idle(result: MethodAudit) -> bool:
    """True if a method proposed nothing, so that no right token could be planted."""
    return any(test.name == PLANTED and not test.num for test in result.tests)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of one answer from vanilla's."""

    divergence: Divergence
    threshold: float
    """The largest gap that rounding explains."""
    gap: float | None = None
    """The distance of the logit of the method's token from the target's best logit; None if one of
    the two answers ended early.
    """
    baseline_gap: float | None = None
    """The distance of the logit of vanilla's token from the best logit."""
    is_same_again: bool | None = None
    """True if the step gave vanilla's tokens when it was run again; None if it was not run again.
    """
    is_bug_again: bool = False
    """True if the step differed by more than rounding explains when it was run again."""

    @property
    def status(self) -> AuditStatus:
        if self.gap is None or self.baseline_gap is None or self.is_bug_again:
            return "bug"
        return "bug" if max(self.gap, self.baseline_gap) > self.threshold else "numerics"


@dataclass(frozen=True, slots=True)
class GreedyAudit:
    """A method's greedy answers, compared with vanilla's."""

    agreement: Agreement
    differences: tuple[Difference, ...]
    is_lossless: bool
    """The method claims to be lossless."""

    @property
    def status(self) -> AuditStatus:
        """The worst status of any difference, or "no difference" if no answer was compared."""
        if not self.agreement.num_compared:
            return "no difference"
        statuses = {difference.status for difference in self.differences}
        if "bug" in statuses:
            return "bug" if self.is_lossless else "lossy"
        return "numerics" if statuses else "identical"

    @property
    def largest_gap(self) -> float | None:
        """The largest gap of any difference; None if no difference has a gap."""
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
    """Texts about requested methods without a verdict, each with the reason."""

    @property
    def statuses(self) -> frozenset[AuditStatus]:
        """The statuses of all results."""
        results: list[GreedyAudit | MethodAudit] = [*self.greedy, *self.methods]
        return frozenset(result.status for result in results)

    @property
    def has_bug(self) -> bool:
        return "bug" in self.statuses

    @property
    def exit_code(self) -> int:
        if self.has_bug:
            return 1
        return 3 if self.unjudged else 0
