"""An audit on a terminal: a table of methods, the largest differences, and a sentence."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from rich.console import Console, RenderableType
from rich.text import Text

from specbench.audit.results import ALPHA, Audit, Difference, GreedyAudit, is_idle
from specbench.audit.token_tests import POWER
from specbench.log.audit import AuditStatus, AuditTest, MethodAudit
from specbench.log.header import RunHeader
from specbench.report import formats
from specbench.report.console import Prose
from specbench.report.export.terminal import print_parts
from specbench.report.layout import draw
from specbench.report.table import METHOD, Cell, Column, Group, Row, Table, Tone

MOST_DIFFERENCES = 20
_TONES: dict[AuditStatus, Tone] = {"bug": "bad", "numerics": "unsure", "lossy": "unsure"}


def print_audit(audit: Audit, info: RunHeader, console: Console, *, is_full: bool = False) -> None:
    """Print the tables and sentences of an audit; in full, every test."""
    title = f"Audit of run {info.id} ({info.model.label}, {audit.dtype})"
    parts: list[RenderableType] = [Text(title, style="bold"), Text()]
    if audit.greedy:
        parts += [Text("Temperature=0, against vanilla's tokens", style="bold")]
        parts += draw(_greedy(audit, info), console.width)
        parts += _differences(audit, info, console.width)
    if audit.methods:
        parts.append(Text("Against the target's own distributions", style="bold"))
        parts += draw(_methods(audit, info), console.width)
        labelled = [
            (f"{info.method(one.method).label} at T={one.level:g}", one) for one in audit.methods
        ]
        parts += _tests_table(labelled, console.width, is_full=is_full)
    parts += [Text(line) for line in _sentences(audit)]
    print_parts(parts, console)


def print_contract(result: MethodAudit, console: Console, *, is_full: bool) -> None:
    """Print the failed tests of a method, or all in full."""
    parts: list[RenderableType] = []
    faults = result.fault.splitlines()
    failed = [fault.partition(": ")[::2] for fault in faults]
    if is_full:
        tests = replace(result, fault="")
        parts += _tests_table([(result.method, tests)], console.width, is_full=True)
    else:
        for name, out_of, effect, bound in map(_test, result.failures):
            failed.append((name, f"{effect} in {out_of} ({'p = ' * (bound[0] != '<')}{bound})"))
    for name, why in failed:
        parts += [Text(f"FAILED  {name}", style="bold red"), Prose(why, indent=8)]
    num, num_failed = len(result.tests) + len(faults), len(result.failures) + len(faults)
    counted = f"{num_failed} of {num} tests of {result.method}."
    text, colour = f"Passed: {num} tests of {result.method}.", "green"
    if result.status == "lossy":
        text, colour = f"not lossless, as it says: {counted}", "yellow"
    elif result.status != "no difference":
        text, colour = f"FAILED: {counted}", "red"
    elif is_idle(result):
        text = f"Not judged: {result.method} proposed no guess on the prompts of the audit."
        colour = "yellow"
    parts.append(Text(text, style=f"bold {colour}"))
    if result.smallest_tv is not None:
        text = (
            f"Power: sampled tokens of {result.num_tokens} draws would have shown a mean total "
            f"variation of {result.smallest_tv:.3f}, to or from the likeliest token, in "
            f"{POWER:.0%} of runs. --full shows every test."
        )
        parts.append(Text(text))
    print_parts(parts, console)


def _table(headings: Sequence[str], rows: Iterable[Row], heading: str = METHOD) -> Table:
    return Table("", tuple(map(Column, headings)), (Group("", tuple(rows)),), heading)


def _row(method: str, label: str, texts: Iterable[str], status: AuditStatus) -> Row:
    return Row(method, label, (*map(Cell, texts), Cell(status, _TONES.get(status, ""))))


def _greedy(audit: Audit, info: RunHeader) -> Table:
    rows = []
    for one in audit.greedy:
        agreement = one.agreement
        first = agreement.first_position
        texts = (
            f"{agreement.num_identical} of {agreement.num_compared}",
            "" if first is None else f"token {first}",
            "" if one.largest_gap is None else f"{one.largest_gap:.3g}",
        )
        label = info.method(agreement.method).label
        rows.append(_row(agreement.method, label, texts, one.status))
    return _table(["identical", "first\ndifference", "largest\ngap", "status"], rows)


def _differences(audit: Audit, info: RunHeader, width: int) -> Iterable[RenderableType]:
    """A table of the differences, bugs and largest gaps first."""
    found = [(one, difference) for one in audit.greedy for difference in one.differences]
    if not found:
        return
    found.sort(key=lambda pair: _severity(pair[1]), reverse=True)
    headings = ["token", "vanilla", "method", "gap", "near-tie\nup to"]
    headings += [f"again in\n{audit.recheck_dtype}"] if audit.recheck_dtype else []
    rows = [_difference(*pair, audit, info=info) for pair in found[:MOST_DIFFERENCES]]
    yield from draw(_table([*headings, "status"], rows, heading="Difference"), width)
    if len(found) > MOST_DIFFERENCES:
        yield Text(f"… and {len(found) - MOST_DIFFERENCES} more with smaller gaps\n", style="dim")


def _severity(difference: Difference) -> tuple[bool, float]:
    gap = float("inf") if difference.gap is None else difference.gap
    return difference.status == "bug", gap / difference.threshold


def _difference(one: GreedyAudit, difference: Difference, audit: Audit, *, info: RunHeader) -> Row:
    divergence = difference.divergence
    key = divergence.key
    turn = f", turn {key.turn + 1}" if key.turn else ""
    repeat = f", repeat {key.repeat + 1}" if key.repeat else ""
    label = f"{info.method(key.method).label} on {key.sample_id}{turn}{repeat}"
    tokens = (divergence.baseline_token, divergence.own_token)
    texts = [
        str(divergence.position),
        *("ended" if token is None else str(token) for token in tokens),
        formats.NONE if difference.gap is None else f"{difference.gap:.3g}",
        f"{difference.threshold:.3g}",
    ]
    if audit.recheck_dtype:
        again = {None: formats.NONE, True: "same", False: "differs"}
        texts.append(again[difference.is_same_again])
    is_allowed = difference.status == "bug" and not one.is_lossless
    return _row(key.method, label, texts, "lossy" if is_allowed else difference.status)


def _methods(audit: Audit, info: RunHeader) -> Table:
    """A row a method and temperature; columns that are empty in all rows are left out."""
    every = [_texts(one) for one in audit.methods]
    shown = [heading for heading in every[0] if any(texts[heading] for texts in every)]
    rows = []
    for one, texts in zip(audit.methods, every, strict=True):
        label = info.method(one.method).label
        rows.append(_row(one.method, label, [texts[heading] for heading in shown], one.status))
    return _table([*shown, "status"], rows)


def _texts(one: MethodAudit) -> dict[str, str]:
    """The texts of a row by the headings of their columns."""
    deviations = [test.effect for test in one.tests if test.name == "deviation"]
    return {
        "T": f"{one.level:g}",
        "same\nagain": f"{one.num_same} of {one.num_replayed}" if one.num_replayed else "",
        "logits\n(epsilon)": f"{max(deviations):.3g}" if deviations else "",
        **{f"p of\n{subject}": _p_value(one, subject) for subject in ("guesses", "tokens", "rule")},
        "tokens\ntested": str(one.num_tokens or ""),
        "smallest\nTV": "" if one.smallest_tv is None else f"{one.smallest_tv:.3f}",
    }


def _p_value(one: MethodAudit, subject: str) -> str:
    """The smallest p-value of a subject; a broken limit counts as 0."""
    tests = [test for test in one.tests if test.subject == subject]
    found = [test.p_value for test in tests if test.p_value is not None]
    found += [0.0 for test in tests if test.p_value is None and test.is_failed]
    return f"{min(found):.2g}" if found else ""


def _tests_table(
    results: Iterable[tuple[str, MethodAudit]], width: int, *, is_full: bool
) -> Iterable[RenderableType]:
    """A table of failed tests, or of all; each result comes with its label."""
    rows = []
    for label, one in results:
        if one.fault:
            rows.append(_row(one.method, label, ("answers", "", one.fault, ""), one.status))
        for test in one.tests if is_full else one.failures:
            status: AuditStatus = one.status if test.is_failed else "no difference"
            rows.append(_row(one.method, label, _test(test), status))
    if rows:
        headings = ("test", "of", "effect", "p, or\nlimit", "status")
        yield from draw(_table(headings, rows, heading="Test"), width)


def _test(test: AuditTest) -> tuple[str, str, str, str]:
    bound = "" if test.limit is None else f"<= {test.limit:.3g}"
    bound = bound if test.p_value is None else f"{test.p_value:.2g}"
    effect = f"{test.effect:.3g} {test.unit}".strip()
    return f"{test.subject}: {test.name}", str(test.num), effect, bound


def _sentences(audit: Audit) -> Iterable[str]:
    """The result, then how to read the columns."""
    if audit.has_bug:
        yield "A method that claims to be lossless is not: see the rows with status bug."
    elif audit.unjudged:
        yield "No bug found, but not all of what was asked for could be judged."
    else:
        yield "No bug found: every method that claims to be lossless passed."
    yield from (f"Not judged: {text}." for text in audit.unjudged)
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
    names = {test.name for one in audit.methods for test in one.tests}
    dtype = audit.recheck_dtype or audit.dtype
    if dtype != "float32" and "deviation" in names and "bits" not in names:
        yield (
            f"In {dtype} rounding hides small differences of logits, such as those of one "
            "layer's stale keys. --dtype float32 finds them."
        )
    if any(one.num_tokens for one in audit.methods):
        yield (
            f"p: corrected for all tests (Holm); a test fails below {ALPHA}. smallest TV: the mean "
            "total variation, to or from the likeliest token, that would have been found in "
            f"{POWER:.0%} of audits. --power TV draws as many tokens as a smaller one needs."
        )
