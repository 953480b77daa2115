"""The audit of a run: are its outputs lossless, and where not, why?

`greedy` looks at completions that differ at temperature 0; `white_box` tests logits, guesses,
tokens and rules at every temperature. The model is loaded only if there is something to look
at. The audit is stored in the run's folder.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from msgspec.structs import replace as replace_part

from specbench.analysis.divergence import find_agreements
from specbench.analysis.records import BASELINE, make_table
from specbench.audit.greedy import Examiner, agreement_with_ours
from specbench.audit.model import RunModel
from specbench.audit.results import Audit, Difference, GreedyAudit
from specbench.audit.white_box import Effort, audit_methods, usable_records
from specbench.errors import RunFolderError, UserError
from specbench.log.audit import (
    AuditTest,
    MethodAudit,
    StoredAudit,
    find_unjudged,
    records_hash,
    write_audit,
)
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.types import VERSION


def audit(
    run: Run,
    open_model: Callable[[bool], RunModel],
    *,
    is_recheck: bool,
    effort: Effort,
    say: Callable[[str], None],
) -> Audit:
    """Audit a run. With `is_recheck`, steps that differ are run again in the model's dtype.

    `open_model` loads the run's model with all its methods, or (False) with vanilla alone.

    Raises:
        UserError: there is nothing to compare, or the model or its prompts are not the run's.
    """
    info, table = run.header, make_table(run.records)
    agreements = find_agreements(table, info.spec.values.history)
    records = usable_records(table) if effort.num_tokens else {}
    if not (agreements or info.servers or any(records)):  # a temperature above 0
        raise UserError(
            f"Run {info.id} has nothing to audit: no method except vanilla finished a greedy "
            "sample that vanilla finished too, and none was sampled.",
            "Audit a run with vanilla and at least one other method.",
        )
    model = None
    if info.servers:
        say("Vanilla: the server's against the engine in this process.")
        model, is_recheck = open_model(False), False  # the methods are the servers'
        agreements = {BASELINE: agreement_with_ours(table, info, model), **agreements}
    elif records or any(agreement.divergences for agreement in agreements.values()):
        model = open_model(is_recheck or bool(records))
    examiner = Examiner(table, info, model, is_recheck=is_recheck) if model else None
    greedy = []
    for agreement in agreements.values():
        method, found = agreement.method, list[Difference]()
        if examiner and agreement.divergences:
            say(f"{method}: looking at {len(agreement.divergences)} differences …")
            found = [examiner.examine(divergence) for divergence in agreement.divergences]
        greedy.append(GreedyAudit(agreement, tuple(found), info.method(method).is_lossless))
    methods = audit_methods(records, info, model, effort, say) if model and records else ()
    audited = Audit(
        dtype=info.model.dtype,
        recheck_dtype=model.dtype if model and is_recheck else None,
        greedy=tuple(greedy),
        methods=tuple(methods),
        device=model.device if model else "",
    )
    return replace(audited, unjudged=_unjudged(audited, info, is_full=bool(effort.num_tokens)))


def _unjudged(audit: Audit, info: RunHeader, *, is_full: bool) -> tuple[str, ...]:
    """Say by reason what was asked for and not judged: sampled answers are only in a full audit."""
    found: dict[str, list[str]] = {}
    for label, temperature, reason in find_unjudged(to_stored(audit, 0), info):
        if is_full or not temperature:
            found.setdefault(reason, []).append(label)
    return tuple(f"{', '.join(labels)}: {reason}" for reason, labels in found.items())


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
    num, num_other = greedy.agreement.num_compared, len(greedy.agreement.divergences)
    is_failed = greedy.status in ("bug", "lossy")
    test = AuditTest(
        "answers", "equal to vanilla's", num, num_other, "answers", is_failed=is_failed
    )
    return replace_part(result, status=status, tests=(test, *result.tests))


def _finite(result: MethodAudit) -> MethodAudit:
    """The result with effects that JSON can hold."""
    most = sys.float_info.max
    tests = (replace_part(test, effect=min(test.effect, most)) for test in result.tests)
    return replace_part(result, tests=tuple(tests))
