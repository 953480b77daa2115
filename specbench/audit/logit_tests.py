"""Tests that compare the logits of a method's steps with those of a plain forward."""

from collections.abc import Iterator

import numpy as np
from scipy.stats import fisher_exact

from specbench.audit.numbers import LogitNumbers
from specbench.audit.results import EPSILON
from specbench.log.audit import AuditTest


def logit_tests(
    logits: LogitNumbers, dtype: str, allowed: float, baseline: LogitNumbers | None = None
) -> Iterator[AuditTest]:
    """Test the logits of a method's steps: their largest deviation, flips, and bits.

    Yields up to three tests, or none if there are no rows. A row has the logits for one token.
    - The largest deviation from a plain forward may not exceed a limit.
    - A flip is a row whose best token is not that of the plain forward. The share of flips may not
      be significantly larger than vanilla's. Rows after the same tokens are copies, such as those
      of equal answers, so only one of them counts.
    - Every row must be equal, bit for bit, to the row that the engine's steps over chains of the
      same tokens give. Rows with unknown `is_exact` are left out. This is tested only if all of
      vanilla's rows are equal in this way. Then the limit is raised, if necessary, to the largest
      deviation of the method's equal rows.

    Args:
        logits: numbers about the method's rows.
        dtype: name of the dtype that the logits are rounded to.
        allowed: the limit of deviations, in epsilons of the dtype times the logits' scale.
        baseline: numbers about vanilla's rows; None for vanilla itself, or if vanilla has no rows.
            Without them only the deviation is tested.
    """
    if not (num_rows := len(logits)):
        return
    # Per row, over its best logits: `deviation` is the largest difference from the plain forward's,
    # `scale` the largest magnitude of the plain forward's.
    deviations = logits.deviation / (EPSILON[dtype] * logits.scale)  # in epsilons [rows]
    largest_deviation = float(deviations.max())
    # `is_exact` [rows] is 1 if a row has the bits of steps over chains, 0 if not, -1 if unknown.
    is_vanilla_exact = baseline is not None and bool((baseline.is_exact == 1).all())
    if is_vanilla_exact:
        allowed = float(deviations.max(where=logits.is_exact == 1, initial=allowed))
    yield AuditTest("logits", "deviation", num_rows, largest_deviation, "epsilon", limit=allowed)
    if baseline is None:
        return
    flip_table = []  # rows: the method, vanilla; columns: flipped, not flipped
    for numbers in (logits, baseline):
        _, first_rows = np.unique(numbers.context, return_index=True)
        is_flipped = numbers.is_flipped[first_rows].astype(bool)
        flip_table.append([int(is_flipped.sum()), int((~is_flipped).sum())])
    num_flips, num_contexts = flip_table[0][0], sum(flip_table[0])
    p_value = float(fisher_exact(flip_table, alternative="greater").pvalue)
    yield AuditTest("logits", "flips", num_contexts, num_flips / num_contexts, "share", p_value)
    is_known = logits.is_exact >= 0  # [rows]
    if is_vanilla_exact and is_known.any():
        num_different = int((logits.is_exact == 0).sum())
        num_known = int(is_known.sum())
        yield AuditTest("logits", "bits", num_known, num_different, "rows that differ", limit=0.0)
