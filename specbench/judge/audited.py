"""The gate's check of the run's stored audit."""

from collections.abc import Iterator

from specbench.analysis.cells import BASELINE, CellKey
from specbench.judge.checks import Check
from specbench.judge.comparison import MEAN
from specbench.log.audit import StoredAudit
from specbench.log.header import RunHeader
from specbench.report.warning_notes import audit_failure


def check_audit(audit: StoredAudit | None, baseline: RunHeader) -> Iterator[Check]:
    """A check of each lossless method at each temperature of the baseline.

    Greedy answers are compared anyway (see `check_outputs`), so without an audit only sampled ones
    are skipped.
    """
    for method in baseline.method_labels:
        if not method.is_lossless or method.spelling in baseline.no_checkpoint:
            continue
        for temperature in baseline.spec.values.temperatures:
            check = _check(audit, CellKey(method.spelling, float(temperature), MEAN))
            if check is not None:
                yield check


def _check(audit: StoredAudit | None, key: CellKey) -> Check | None:
    """The check of one method at one temperature; None if there is nothing to say."""
    results = audit.at(key.method, key.temperature) if audit else ()
    failed = [result for result in results if result.status == "bug"]
    if failed:
        text = audit_failure(failed[0])
        if failed[0].is_raised:
            text += f" at T={failed[0].level:g}"
        return Check("audit", "failed", text, key)
    if audit and results:
        if reason := audit.unjudged(key.method, key.temperature):
            return Check("audit", "skipped", f"not judged: {reason}", key)
        return Check("audit", "passed", "no bug found", key)
    if key.temperature and key.method != BASELINE:
        text = "not audited: run `specbench audit` on the run first"
        return Check("audit", "skipped", text, key)
    return None
