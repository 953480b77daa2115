"""Results of an audit, by difference and by method: rounding (numerics) or a bug; its limits."""

from dataclasses import dataclass

from specbench.analysis.divergence import Agreement, Divergence
from specbench.log.audit import AuditStatus, MethodAudit

ALPHA = 0.01
"""A corrected p-value below this is a difference between distributions."""

EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
_FACTOR = {"float32": 64.0, "bfloat16": 8.0, "float16": 8.0}


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


def deviation_limit(dtype: str, calibrated: float | None = None) -> float:
    """The largest deviation of a logit that rounding explains, in epsilon times the logits' scale.

    It is four times the deviation of the model's own chains of several lengths (`calibrated`),
    at least the factor of `near_tie` and at most sixteen times that; without chains, four times
    that. On `tiny` in float32 a sound tree stayed below 57 in 77,000 sampled tokens with torch's
    operations; stale keys in one layer gave 56,000, wrong positions 390,000.
    """
    factor = _FACTOR[dtype]
    return min(max(factor, 4 * (factor if calibrated is None else calibrated)), 16 * factor)


PLANTED = "acceptance of planted guesses"


def is_idle(result: MethodAudit) -> bool:
    """True for a method that proposed nothing, so that no guess could be planted."""
    return any(test.name == PLANTED and not test.num for test in result.tests)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference from vanilla.

    `gap` is how far the method's token lies below the best one in the target's logits,
    `baseline_gap` vanilla's; both are None if one side ended early. Up to `threshold`,
    rounding explains a gap. `is_same_again` tells if the step, run again, gave vanilla's
    tokens (None: not run again), `is_bug_again` if it then differed by more than rounding.
    """

    divergence: Divergence
    threshold: float
    gap: float | None = None
    baseline_gap: float | None = None
    is_same_again: bool | None = None
    is_bug_again: bool = False

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

    @property
    def status(self) -> AuditStatus:
        """The worst status of its differences."""
        statuses = {difference.status for difference in self.differences}
        if "bug" in statuses:
            return "bug" if self.is_lossless else "lossy"
        return "numerics" if statuses else "identical"

    @property
    def largest_gap(self) -> float | None:
        return max((d.gap for d in self.differences if d.gap is not None), default=None)


@dataclass(frozen=True, slots=True)
class Audit:
    """All statuses on a run.

    `dtype` is the run's, `recheck_dtype` the dtype in which steps were run again, if any were.
    `device` is the audit's, empty if no model was needed.
    `methods` are the tests of logits, guesses, tokens and rules. `unjudged` lists
    what was asked for and has no verdict.
    """

    dtype: str
    recheck_dtype: str | None
    greedy: tuple[GreedyAudit, ...]
    methods: tuple[MethodAudit, ...] = ()
    device: str = ""
    unjudged: tuple[str, ...] = ()

    @property
    def statuses(self) -> frozenset[AuditStatus]:
        """The statuses that occur."""
        greedy = {one.status for one in self.greedy}
        return frozenset(greedy | {one.status for one in self.methods})

    @property
    def has_bug(self) -> bool:
        return "bug" in self.statuses

    @property
    def exit_code(self) -> int:
        return 1 if self.has_bug else 3 if self.unjudged else 0
