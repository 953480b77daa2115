"""Check the stored audit of a run, as part of the gate."""

from collections.abc import Iterator

from specbench.analysis.cells import BASELINE, CellKey
from specbench.judge.checks import Check
from specbench.judge.comparison import MEAN
from specbench.log.audit import StoredAudit
from specbench.log.header import RunHeader
from specbench.report.warning_notes import audit_failure


def check_audit(audit: StoredAudit | None, baseline: RunHeader) -> Iterator[Check]:
    """Check each lossless method at each temperature of the baseline.

    Greedy answers are always compared (see `check_outputs`). Without an audit, only the checks of
    sampled answers are skipped.
    """
    for method in baseline.method_labels:
        if not method.is_lossless or method.spelling in baseline.no_checkpoint:
            continue
        for temperature in baseline.spec.values.temperatures:
            check = _check(audit, CellKey(method.spelling, float(temperature), MEAN))
            if check is not None:
                yield check


def _check(audit: StoredAudit | None, key: CellKey) -> Check | None:
    """The check "audit" of one method at one temperature of the run.

    The check fails if the audit found a bug, and is skipped if there is no verdict. Greedy answers
    and vanilla need no audit. If it has no result for them, there is no check (None).

    Args:
        audit: the stored audit of the run's answers; None without an audit.
        key: the checked cell: the method, the temperature, and the mean over tasks.
    """
    # The audit's results at the run's temperature and, for sampled answers, at a raised one, at
    # which more drafts are rejected.
    method_audits = audit.at(key.method, key.temperature) if audit else ()
    with_bug = [method_audit for method_audit in method_audits if method_audit.status == "bug"]
    if with_bug:
        failure = audit_failure(with_bug[0])  # the error or the failed test in words
        if with_bug[0].is_raised:
            failure += f" at T={with_bug[0].level:g}"
        return Check("audit", "failed", failure, key)
    if audit and method_audits:
        if reason := audit.unjudged(key.method, key.temperature):
            return Check("audit", "skipped", f"not judged: {reason}", key)
        return Check("audit", "passed", "no bug found", key)
    if key.temperature and key.method != BASELINE:  # sampled answers, not vanilla's
        remedy = "not audited: run `specbench audit` on the run first"
        return Check("audit", "skipped", remedy, key)
    return None
