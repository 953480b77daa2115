"""An audit on a terminal: a table of methods, the largest differences, and a sentence."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from rich.console import Console

from specbench.audit.results import ALPHA, Audit, Difference, GreedyAudit, is_idle
from specbench.audit.token_tests import POWER
from specbench.judge.printer import BLANK, Line, Part, print_page
from specbench.log.audit import AuditStatus, AuditTest, MethodAudit
from specbench.log.header import RunHeader
from specbench.report import formats
from specbench.report.table import METHOD, Cell, Column, Group, Row, Table, Tone

MOST_DIFFERENCES = 20
"""Differences that are listed."""
_TONES: dict[AuditStatus, Tone] = {"bug": "bad", "numerics": "unsure", "lossy": "unsure"}
_P_SUBJECTS = ("guesses", "tokens", "rule")
"""Subjects of tests whose p-values have a column."""


def print_audit(
    audit: Audit, header: RunHeader, console: Console, *, is_full: bool = False
) -> None:
    """Print the tables and sentences of an audit; in full, every test."""
    print_page(_audit_page(audit, header, is_full=is_full), console)


def _audit_page(audit: Audit, header: RunHeader, *, is_full: bool) -> Iterator[Part]:
    """The tables and sentences of an audit."""
    yield Line(f"Audit of run {header.id} ({header.model.label}, {audit.dtype})", style="bold")
    yield BLANK
    if audit.greedy:
        yield Line("Temperature=0, against vanilla's tokens", style="bold")
        yield _greedy_table(audit, header)
        yield from _differences(audit, header)
    if audit.methods:
        yield Line("Against the target's own distributions", style="bold")
        yield _methods_table(audit, header)
        labelled = [
            (f"{header.method(audited.method).label} at T={audited.level:g}", audited)
            for audited in audit.methods
        ]
        yield from _tests_table(labelled, is_full=is_full)
    for sentence in _sentences(audit):
        yield Line(sentence)


def print_contract(audited: MethodAudit, console: Console, *, is_full: bool) -> None:
    """Print the failed tests of a method, or all in full."""
    print_page(_contract_page(audited, is_full=is_full), console)


def _contract_page(audited: MethodAudit, *, is_full: bool) -> Iterator[Part]:
    """The tests of a method, its faults, and the result in a sentence."""
    if is_full:
        without_fault = replace(audited, fault="")
        yield from _tests_table([(audited.method, without_fault)], is_full=True)
    for fault in audited.fault.splitlines():
        name, _, reason = fault.partition(": ")
        yield from _failure(name, reason)
    if not is_full:
        for test in audited.failures:
            texts = _TestTexts.of(test)
            bound = texts.bound if texts.bound.startswith("<") else f"p = {texts.bound}"
            yield from _failure(texts.name, f"{texts.effect} in {texts.num} ({bound})")
    text, colour = _contract_result(audited)
    yield Line(text, style=f"bold {colour}")
    if audited.smallest_tv is not None:
        yield Line(
            f"Power: sampled tokens of {audited.num_tokens} draws would have shown a mean total "
            f"variation of {audited.smallest_tv:.3f}, to or from the likeliest token, in "
            f"{POWER:.0%} of runs. --full shows every test."
        )


def _failure(name: str, reason: str) -> Iterator[Part]:
    yield Line(f"FAILED  {name}", style="bold red")
    yield Line(reason, indent=8)


def _contract_result(audited: MethodAudit) -> tuple[str, str]:
    """The result of a contract in a sentence, and the colour of it."""
    num_faults = len(audited.fault.splitlines())
    num_tests = len(audited.tests) + num_faults
    num_failed = len(audited.failures) + num_faults
    counted = f"{num_failed} of {num_tests} tests of {audited.method}"
    if audited.status == "lossy":
        return f"lossy, as declared: {counted} failed.", "yellow"
    if audited.status != "no difference":
        return f"FAILED: {counted}.", "red"
    if is_idle(audited):
        text = f"Not judged: {audited.method} proposed no draft token on the prompts of the audit."
        return text, "yellow"
    return f"Passed: {num_tests} tests of {audited.method}.", "green"


def _table(headings: Sequence[str], rows: Iterable[Row], heading: str = METHOD) -> Table:
    """A table of one group, with these headings beside that of the labels."""
    return Table("", tuple(map(Column, headings)), (Group("", tuple(rows)),), heading)


def _row(method: str, label: str, texts: Iterable[str], status: AuditStatus) -> Row:
    """A row of texts that ends with a status."""
    status_cell = Cell(status, _TONES.get(status, ""))
    return Row(method, label, (*map(Cell, texts), status_cell))


def _greedy_table(audit: Audit, header: RunHeader) -> Table:
    """One row per method with greedy answers."""
    rows = []
    for greedy in audit.greedy:
        agreement = greedy.agreement
        first, largest = agreement.first_position, greedy.largest_gap
        texts = (
            f"{agreement.num_identical} of {agreement.num_compared}",
            "" if first is None else f"token {first}",
            "" if largest is None else f"{largest:.3g}",
        )
        label = header.method(agreement.method).label
        rows.append(_row(agreement.method, label, texts, greedy.status))
    return _table(["identical", "first\ndifference", "largest\ngap", "status"], rows)


def _differences(audit: Audit, header: RunHeader) -> Iterator[Part]:
    """A table of the differences, bugs and largest gaps first."""
    pairs = [(greedy, difference) for greedy in audit.greedy for difference in greedy.differences]
    if not pairs:
        return
    pairs.sort(key=lambda pair: _severity(pair[1]), reverse=True)
    headings = ["token", "vanilla", "method", "gap", "near-tie\nup to"]
    if audit.recheck_dtype:
        headings.append(f"again in\n{audit.recheck_dtype}")
    rows = [
        _difference_row(greedy, difference, header, has_recheck=bool(audit.recheck_dtype))
        for greedy, difference in pairs[:MOST_DIFFERENCES]
    ]
    yield _table([*headings, "status"], rows, heading="Difference")
    num_more = len(pairs) - MOST_DIFFERENCES
    if num_more > 0:
        yield Line(f"… and {num_more} more with smaller gaps", style="dim")
        yield BLANK


def _severity(difference: Difference) -> tuple[bool, float]:
    gap = float("inf") if difference.gap is None else difference.gap
    return difference.status == "bug", gap / difference.threshold


def _difference_row(
    greedy: GreedyAudit, difference: Difference, header: RunHeader, *, has_recheck: bool
) -> Row:
    """One difference: where it is, both tokens, and their distance."""
    divergence = difference.divergence
    key = divergence.key
    label = f"{header.method(key.method).label} on {key.sample_id}"
    if key.turn:
        label += f", turn {key.turn + 1}"
    if key.repeat:
        label += f", pass {key.repeat + 1}"
    tokens = (divergence.baseline_token, divergence.own_token)
    texts = [
        str(divergence.position),
        *("ended" if token is None else str(token) for token in tokens),
        formats.NONE if difference.gap is None else f"{difference.gap:.3g}",
        f"{difference.threshold:.3g}",
    ]
    if has_recheck:
        again = {None: formats.NONE, True: "same", False: "differs"}
        texts.append(again[difference.is_same_again])
    status = difference.status
    if status == "bug" and not greedy.is_lossless:
        status = "lossy"
    return _row(key.method, label, texts, status)


def _methods_table(audit: Audit, header: RunHeader) -> Table:
    """One row per method and temperature; columns that are empty in all rows are left out."""
    texts_of_rows = [_method_texts(audited) for audited in audit.methods]
    headings = [
        heading for heading in texts_of_rows[0] if any(texts[heading] for texts in texts_of_rows)
    ]
    rows = []
    for audited, texts in zip(audit.methods, texts_of_rows, strict=True):
        label = header.method(audited.method).label
        shown = [texts[heading] for heading in headings]
        rows.append(_row(audited.method, label, shown, audited.status))
    return _table([*headings, "status"], rows)


def _method_texts(audited: MethodAudit) -> dict[str, str]:
    """The texts of a row by the headings of their columns."""
    deviations = [test.effect for test in audited.tests if test.name == "deviation"]
    same_again = ""
    if audited.num_replayed:
        same_again = f"{audited.num_same} of {audited.num_replayed}"
    return {
        "T": f"{audited.level:g}",
        "same\nagain": same_again,
        "logits\n(epsilon)": f"{max(deviations):.3g}" if deviations else "",
        **{f"p of\n{subject}": _p_value(audited, subject) for subject in _P_SUBJECTS},
        "tokens\ntested": str(audited.num_tokens or ""),
        "smallest\nTV": "" if audited.smallest_tv is None else f"{audited.smallest_tv:.3f}",
    }


def _p_value(audited: MethodAudit, subject: str) -> str:
    """The smallest p-value of a subject; a test that failed without one counts as 0."""
    p_values = []
    for test in audited.tests:
        if test.subject != subject:
            continue
        if test.p_value is not None:
            p_values.append(test.p_value)
        elif test.is_failed:
            p_values.append(0.0)
    return f"{min(p_values):.2g}" if p_values else ""


def _tests_table(results: Iterable[tuple[str, MethodAudit]], *, is_full: bool) -> Iterator[Table]:
    """A table of failed tests, or of all; each result comes with its label."""
    rows = []
    for label, audited in results:
        if audited.fault:
            texts = _TestTexts("answers", "", audited.fault, "")
            rows.append(_row(audited.method, label, texts, audited.status))
        for test in audited.tests if is_full else audited.failures:
            status: AuditStatus = audited.status if test.is_failed else "no difference"
            rows.append(_row(audited.method, label, _TestTexts.of(test), status))
    if rows:
        headings = ("test", "of", "effect", "p, or\nlimit", "status")
        yield _table(headings, rows, heading="Test")


class _TestTexts(NamedTuple):
    """A test in words."""

    name: str
    num: str
    """What the test counts, such as answers."""
    effect: str
    bound: str
    """The p-value, or the largest effect that passes."""

    @classmethod
    def of(cls, test: AuditTest) -> "_TestTexts":
        bound = ""
        if test.p_value is not None:
            bound = f"{test.p_value:.2g}"
        elif test.limit is not None:
            bound = f"<= {test.limit:.3g}"
        effect = f"{test.effect:.3g} {test.unit}".strip()
        return cls(f"{test.subject}: {test.name}", str(test.num), effect, bound)


def _sentences(audit: Audit) -> Iterator[str]:
    """The result, then how to read the columns."""
    if audit.has_bug:
        yield "A method that claims to be lossless is not: see the rows with status bug."
    elif audit.unjudged:
        yield "No bug found, but not all of what was asked for could be judged."
    else:
        yield "No bug found: every method that claims to be lossless passed."
    for text in audit.unjudged:
        yield f"Not judged: {text}."
    if audit.greedy and audit.statuses & {"numerics", "bug"}:
        yield (
            "gap: how far the method's token lies below the best one in the target's logits. "
            "Rounding explains gaps up to the near-tie, and none beyond it."
        )
        if not audit.recheck_dtype and audit.dtype != "float32":
            yield (
                "Use --dtype float32 to run these steps again: near-ties are a thousand times "
                "rarer there."
            )
    names = {test.name for audited in audit.methods for test in audited.tests}
    dtype = audit.recheck_dtype or audit.dtype
    if dtype != "float32" and "deviation" in names and "bits" not in names:
        yield (
            f"In {dtype} rounding hides small differences of logits, such as those of one "
            "layer's stale keys. --dtype float32 finds them."
        )
    if any(audited.num_tokens for audited in audit.methods):
        yield (
            f"p: corrected for all tests (Holm); a test fails below {ALPHA}. smallest TV: the mean "
            "total variation, to or from the likeliest token, that would have been found in "
            f"{POWER:.0%} of audits. --power TV draws as many tokens as a smaller one needs."
        )
