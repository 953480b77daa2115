"""Stored audits with given results."""

from specbench.log.audit import AuditStatus, AuditTest, MethodAudit, StoredAudit

SURPRISE = AuditTest("tokens", "surprise", 900, -0.2, "nats", p_value=1e-9, is_failed=True)
RANK = AuditTest("tokens", "rank", 900, 0.001, "mass", p_value=1.0)


def failed_audit(method: str, temperature: float, level: float | None = None) -> MethodAudit:
    return MethodAudit(
        method, temperature, level or temperature, "bug", num_tokens=900, smallest_tv=0.05,
        tests=(SURPRISE, RANK),
    )  # fmt: skip


def passed_audit(method: str, temperature: float) -> MethodAudit:
    status: AuditStatus = "no difference" if temperature else "identical"
    return MethodAudit(
        method, temperature, temperature, status, num_tokens=900, smallest_tv=0.04, tests=(RANK,)
    )


def stored_audit(
    *results: MethodAudit, num_records: int = 16, records_sha256: str = ""
) -> StoredAudit:
    return StoredAudit(
        created="2026-11-21T12:00:00+00:00", specbench="0.1.0", device="cpu", dtype="float32",
        num_records=num_records, records_sha256=records_sha256, results=results,
    )  # fmt: skip
