"""Tests of the logits of a method's steps against those of a plain forward."""

from collections.abc import Iterator

from scipy.stats import fisher_exact

from specbench.audit.numbers import LogitNumbers
from specbench.audit.results import EPSILON
from specbench.log.audit import AuditTest


def logit_tests(
    logits: LogitNumbers, dtype: str, allowed: float, baseline: LogitNumbers | None = None
) -> Iterator[AuditTest]:
    """Tests of logits along accepted paths: the largest deviation, flips and bits.

    A flip is a row [vocab] whose best token is not the plain forward's. The method's share of flips
    is compared with vanilla's share. Bits are tested only if every row of vanilla has the bits of
    the engine's steps over plain chains. Rows of steps whose shape changes bits are left out, so
    a row with other bits is a bug. `allowed` is the largest deviation that passes, in epsilons of
    the dtype times the logits' scale. If bits are tested, the deviations of rows with the bits of
    the engine's own steps pass too, however large.
    `logits` and `baseline` (vanilla's) have columns [rows].
    """
    if not (num_rows := len(logits)):
        return
    deviations = logits.deviation / (EPSILON[dtype] * logits.scale)  # [rows], from a plain forward
    largest_deviation = float(deviations.max())
    # Vanilla has no baseline: its rows are judged by `allowed` alone.
    has_own_bits = (
        baseline is not None and len(baseline) > 0 and bool((baseline.is_exact == 1).all())
    )
    if has_own_bits:
        allowed = float(deviations.max(where=logits.is_exact == 1, initial=allowed))
    yield AuditTest("logits", "deviation", num_rows, largest_deviation, "epsilon", limit=allowed)
    if baseline is None or not len(baseline):
        return
    num_flips, baseline_flips = int(logits.is_flipped.sum()), int(baseline.is_flipped.sum())
    # Rows: the method, vanilla. Columns: flipped, not flipped.
    flip_table = [
        [num_flips, num_rows - num_flips],
        [baseline_flips, len(baseline) - baseline_flips],
    ]
    p_value = float(fisher_exact(flip_table, alternative="greater").pvalue)
    yield AuditTest("logits", "flips", num_rows, num_flips / num_rows, "share", p_value)
    # is_exact is 1 if all bits of a row are equal, 0 if not, and -1 where that is unknown.
    has_bits = logits.is_exact >= 0
    if has_own_bits and has_bits.any():
        num_different = int((logits.is_exact == 0).sum())
        num_known = int(has_bits.sum())
        yield AuditTest("logits", "bits", num_known, num_different, "rows that differ", limit=0.0)
