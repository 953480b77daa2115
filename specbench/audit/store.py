"""An audit as the file that stays in the run's folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec.structs import replace as replace_part

from specbench.audit.results import Audit, GreedyAudit
from specbench.errors import RunFolderError
from specbench.log.audit import AuditTest, MethodAudit, StoredAudit, records_hash, write_audit
from specbench.log.run import Run
from specbench.types import VERSION


def store_audit(audit: Audit, run: Run, say: Callable[[str], None]) -> None:
    """Write the audit into the run's folder; say so if that is not possible."""
    try:
        stored = to_stored(audit, len(run.records))
        write_audit(run.folder, replace_part(stored, records_sha256=records_hash(run.folder)))
    except RunFolderError as error:
        say(f"The audit is not stored: {error.message}")


def to_stored(audit: Audit, num_records: int) -> StoredAudit:
    """The file's content. What was found in greedy answers is a test like the others."""
    greedy = {one.agreement.method: one for one in audit.greedy}
    results = []
    for result in audit.methods:
        one = greedy.pop(result.method, None) if not result.level else None
        results.append(result if one is None else _joined(result, one))
    results += [_joined(MethodAudit(name, 0.0, 0.0), one) for name, one in greedy.items()]
    return StoredAudit(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        specbench=VERSION,
        device=audit.device,
        dtype=audit.recheck_dtype or audit.dtype,
        num_records=num_records,
        results=tuple(map(_finite, results)),
    )


def _joined(result: MethodAudit, greedy: GreedyAudit) -> MethodAudit:
    """The result with the greedy answers' own; the worse status counts."""
    statuses = {result.status, greedy.status}
    status = next((one for one in ("bug", "lossy") if one in statuses), greedy.status)
    agreement = greedy.agreement
    test = AuditTest(
        "answers",
        "equal to vanilla's",
        agreement.num_compared,
        len(agreement.divergences),
        "answers",
        is_failed=greedy.status in ("bug", "lossy"),
    )
    return replace_part(result, status=status, tests=(test, *result.tests))


def _finite(result: MethodAudit) -> MethodAudit:
    """The result with effects that JSON can hold."""
    most = sys.float_info.max
    tests = (replace_part(test, effect=min(test.effect, most)) for test in result.tests)
    return replace_part(result, tests=tuple(tests))
