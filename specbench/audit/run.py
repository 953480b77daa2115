"""Audit a run: test whether its outputs are lossless, and examine those that are not.

`greedy` examines answers at temperature 0 that differ from vanilla's. `white_box` tests logits,
drafts, tokens and rules at every temperature. The model is loaded only if there is something to
examine. The audit is stored in the run's folder.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from msgspec.structs import replace as replace_part

from specbench.analysis.divergence import Agreement, find_agreements
from specbench.analysis.records import BASELINE, make_table
from specbench.audit.greedy import Examiner, agreement_with_ours
from specbench.audit.levels import num_cells
from specbench.audit.model import RunModel
from specbench.audit.parts import Parts
from specbench.audit.recorded import usable_records
from specbench.audit.results import Audit, Difference, GreedyAudit
from specbench.audit.white_box import Effort, audit_methods
from specbench.errors import RunFolderError, UserError
from specbench.log.audit import (
    AuditStatus,
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

_WORST_FIRST: tuple[AuditStatus, ...] = ("bug", "lossy")
"""The statuses of failed audits, the worst first."""


def audit(
    run: Run,
    open_model: Callable[[bool], RunModel],
    *,
    is_recheck: bool,
    effort: Effort,
    say: Callable[[str], None],
) -> Audit:
    """Audit a run: compare greedy answers with vanilla's, and test what every method emits.

    Args:
        run: the run. A run of only vanilla must have sampled answers.
        open_model: loads the run's model, with all methods (True) or with vanilla only (False).
        is_recheck: repeat steps whose tokens differ from vanilla's, in the model's dtype.
        effort: size of the tests. With 0 tokens, only greedy answers are compared.
        say: prints a line of progress.

    Raises:
        UserError: there is nothing to compare, or the model or its prompts are not the run's.
    """
    header = run.header
    header.refuse_import("audited")  # raises for a run that was read from another tool's file
    table = make_table(run.records)
    # method -> its greedy answers, compared with vanilla's (`history`: whose replies a chat has)
    agreements = find_agreements(table, header.spec.values.history)
    # temperature -> method -> measured records; empty if only greedy answers are compared
    records_by_temperature = usable_records(table) if effort.num_tokens else {}
    is_sampled = any(records_by_temperature)  # True if a temperature is above 0
    if not (agreements or header.servers or is_sampled):
        raise UserError(
            f"Run {header.id} has nothing to audit: no method except vanilla finished a greedy "
            "sample that vanilla finished too, and no answer was sampled.",
            "Audit a run with vanilla and at least one other method.",
        )
    model = None  # stays None if there is nothing to examine
    if header.servers:  # compare vanilla's server, or else all servers, with vanilla here
        labels = [BASELINE] if BASELINE in header.methods else [*header.methods]
        say(f"{', '.join(labels)}: comparing the server's answers with vanilla in this process …")
        model = open_model(False)  # vanilla only
        is_recheck = False  # the servers' methods cannot be run here
        by_server = {label: agreement_with_ours(label, table, header, model) for label in labels}
        agreements = {**by_server, **agreements}
    elif records_by_temperature or _num_different(agreements):
        model = open_model(is_recheck or bool(records_by_temperature))
    examiner = Examiner(table, header, model, is_recheck=is_recheck) if model else None
    parts = Parts(_num_different(agreements) + num_cells(records_by_temperature, header), say)
    greedy_audits = [
        _audit_greedy(agreement, examiner, header, parts) for agreement in agreements.values()
    ]
    method_audits: Sequence[MethodAudit] = ()  # tests of logits, drafts, tokens and rules
    if model and records_by_temperature:
        method_audits = audit_methods(records_by_temperature, header, model, effort, parts)
    result = Audit(
        dtype=header.model.dtype,
        recheck_dtype=model.dtype if model and is_recheck else None,
        greedy=tuple(greedy_audits),
        methods=tuple(method_audits),
        device=model.device if model else "",
    )
    return replace(result, unjudged=_unjudged(result, header, is_full=bool(effort.num_tokens)))


def _num_different(agreements: Mapping[str, Agreement]) -> int:
    """The number of methods with answers that differ."""
    return sum(bool(agreement.divergences) for agreement in agreements.values())


def _audit_greedy(
    agreement: Agreement,
    examiner: Examiner | None,
    header: RunHeader,
    parts: Parts,
) -> GreedyAudit:
    """Examine the first difference from vanilla in each greedy answer of a method."""
    differences: list[Difference] = []
    if examiner and agreement.divergences:
        num_different = len(agreement.divergences)
        parts.begin(f"{agreement.method}: examining {num_different} answers that differ")
        differences = [examiner.examine(divergence) for divergence in agreement.divergences]
    is_lossless = header.method(agreement.method).is_lossless
    return GreedyAudit(agreement, tuple(differences), is_lossless)


def _unjudged(audit: Audit, header: RunHeader, *, is_full: bool) -> tuple[str, ...]:
    """Texts such as "methods: reason" about methods without a verdict, one per reason.

    Methods without a verdict on sampled answers are named only in full audits.
    """
    labels_by_reason: dict[str, list[str]] = {}
    for unjudged in find_unjudged(to_stored(audit, 0), header):  # 0: the count is not used
        if is_full or not unjudged.temperature:
            labels_by_reason.setdefault(unjudged.reason, []).append(unjudged.label)
    return tuple(f"{', '.join(labels)}: {reason}" for reason, labels in labels_by_reason.items())


def store_audit(audit: Audit, run: Run, say: Callable[[str], None]) -> None:
    """Write the audit into the run's folder, or say that this is not possible."""
    try:
        stored = to_stored(audit, len(run.records))
        write_audit(run.folder, replace_part(stored, records_sha256=records_hash(run.folder)))
    except RunFolderError as error:
        say(f"The audit is not stored: {error.message}")


def to_stored(audit: Audit, num_records: int) -> StoredAudit:
    """The content of `audit.json`: the tests of each method at each temperature.

    The comparison of a method's greedy answers with vanilla's becomes a test like the others. It is
    added to the method's tests at temperature 0, or is the only test there. `num_records` is the
    number of the run's records.
    """
    # method -> its comparison with vanilla, until that has become a test
    greedy_by_method = {greedy.agreement.method: greedy for greedy in audit.greedy}
    method_audits = []  # one per method and temperature
    for method_audit in audit.methods:
        if not method_audit.level and method_audit.method in greedy_by_method:
            method_audit = _joined(method_audit, greedy_by_method.pop(method_audit.method))
        method_audits.append(method_audit)
    for method, greedy in greedy_by_method.items():
        no_tests = MethodAudit(method, temperature=0.0, level=0.0)
        method_audits.append(_joined(no_tests, greedy))
    return StoredAudit(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        specbench=VERSION,
        device=audit.device,
        dtype=audit.recheck_dtype or audit.dtype,  # `recheck_dtype` is None without a re-check
        num_records=num_records,
        results=tuple(map(_finite, method_audits)),  # JSON has no infinity
    )


def _joined(method_audit: MethodAudit, greedy: GreedyAudit) -> MethodAudit:
    """A method's audit at temperature 0, with a test of its greedy answers as the first test.

    `greedy` compares these answers with vanilla's. If either result failed, the status is the worse
    of the two. Otherwise it is the status of the greedy answers.
    """
    statuses = {method_audit.status, greedy.status}
    status = next((failed for failed in _WORST_FIRST if failed in statuses), greedy.status)
    equality_test = AuditTest(
        "answers",
        "equal to vanilla's",
        num=greedy.agreement.num_compared,
        effect=len(greedy.agreement.divergences),  # number of answers that differ
        unit="answers",
        is_failed=greedy.status in _WORST_FIRST,
    )
    return replace_part(method_audit, status=status, tests=(equality_test, *method_audit.tests))


def _finite(audited: MethodAudit) -> MethodAudit:
    """Replace infinite effects by the largest float, which JSON can hold."""
    largest = sys.float_info.max
    tests = (replace_part(test, effect=min(test.effect, largest)) for test in audited.tests)
    return replace_part(audited, tests=tuple(tests))
