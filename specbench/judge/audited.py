"""Checks of the stored audit of a run: a lossless method may not have failed it."""

from collections.abc import Iterator

from specbench.analysis.cells import BASELINE, CellKey
from specbench.judge.checks import Check
from specbench.judge.comparison import MEAN
from specbench.log.audit import StoredAudit
from specbench.log.header import RunHeader
from specbench.report.warning_notes import audit_failure


def check_audit(audit: StoredAudit | None, baseline: RunHeader) -> Iterator[Check]:
    """A check of each lossless method at each temperature of the baseline.

    Greedy answers are compared anyway (see `outputs`), so without an audit only sampled ones
    are skipped.
    """
    for method in baseline.method_labels:
        if not method.is_lossless or method.spelling in baseline.no_checkpoint:
            continue
        for temperature in baseline.spec.values.temperatures:
            key = CellKey(method.spelling, float(temperature), MEAN)
            results = audit.at(method.spelling, temperature) if audit else ()
            failed = [one for one in results if one.status == "bug"]
            if failed:
                at = f" at T={failed[0].level:g}" if failed[0].is_raised else ""
                text = f"{audit_failure(failed[0])}{at}"
                yield Check("audit", "failed", text, key)
            elif audit and results and (reason := audit.unjudged(method.spelling, temperature)):
                yield Check("audit", "skipped", f"not judged: {reason}", key)
            elif results:
                yield Check("audit", "passed", "no bug found", key)
            elif temperature and method.spelling != BASELINE:
                text = "not audited: run `specbench audit` on the run first"
                yield Check("audit", "skipped", text, key)
