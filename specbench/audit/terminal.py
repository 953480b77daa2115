"""An audit on a terminal: a table of methods, the largest differences, and a sentence."""

from collections.abc import Iterator

from msgspec.structs import replace
from rich.console import Console

from specbench.audit.results import ALPHA, Audit, Difference, GreedyAudit, is_idle
from specbench.audit.tables import TestTexts, group_table, status_row, tests_table
from specbench.audit.token_tests import POWER
from specbench.judge.printer import BLANK, Line, Part, print_page
from specbench.log.audit import MethodAudit
from specbench.log.header import RunHeader
from specbench.report import formats
from specbench.report.table import Row, Table

MOST_DIFFERENCES = 20
"""Number of differences listed."""
_P_SUBJECTS = ("guesses", "tokens", "rule")
"""Subjects of tests with a column of p-values."""


def print_audit(
    audit: Audit, header: RunHeader, console: Console, *, is_full: bool = False
) -> None:
    """Print the tables and sentences of an audit; in full, every test."""
    print_page(_audit_page(audit, header, is_full=is_full), console)


def _audit_page(audit: Audit, header: RunHeader, *, is_full: bool) -> Iterator[Part]:
    """The tables and sentences of an audit, as parts of a page; in full, with every test.

    In an audit, `greedy` are the methods' greedy answers against vanilla's, `methods` their other
    tests at each temperature, `dtype` the run's dtype.
    """
    yield Line(f"Audit of run {header.id} ({header.model.label}, {audit.dtype})", style="bold")
    yield BLANK
    if audit.greedy:
        yield Line("Temperature=0, against vanilla's tokens", style="bold")
        yield _greedy_table(audit, header)
        yield from _differences(audit, header)
    if audit.methods:
        yield Line("Against the target's own distributions", style="bold")
        yield _methods_table(audit, header)
        # Method and sampling temperature (`level`: the run's or a raised one), for readers, with
        # the method's audit.
        labelled_audits = [
            (f"{header.method(audited.method).label} at T={audited.level:g}", audited)
            for audited in audit.methods
        ]
        yield from tests_table(labelled_audits, is_full=is_full)
    for sentence in _sentences(audit):
        yield Line(sentence)


def print_contract(audited: MethodAudit, console: Console, *, is_full: bool) -> None:
    """Print the failed tests of a method, or all in full."""
    print_page(_contract_page(audited, is_full=is_full), console)


def _contract_page(method_audit: MethodAudit, *, is_full: bool) -> Iterator[Part]:
    """The tests of a method, its faults, and the result in a sentence, as parts of a page.

    All tests are shown if `is_full`, else the failed ones. `smallest_tv` is the smallest mean total
    variation that a test finds in POWER (a share) of runs; None if no tokens were sampled.
    """
    if is_full:
        without_fault = replace(method_audit, fault="")  # faults follow, in lines of their own
        yield from tests_table([(method_audit.method, without_fault)], is_full=True)
    # Each line of `fault` is "what was tested: what it raised".
    for fault in method_audit.fault.splitlines():
        name, _, reason = fault.partition(": ")
        yield from _failure(name, reason)
    if not is_full:
        for test in method_audit.failures:
            test_texts = TestTexts.of(test)  # its name, number tested, effect and bound in words
            # The largest effect that passes, "<= 8", or a p-value.
            bound = test_texts.bound
            if not bound.startswith("<"):
                bound = f"p = {bound}"
            reason = f"{test_texts.effect} in {test_texts.num} ({bound})"
            yield from _failure(test_texts.name, reason)  # two lines
    sentence, colour = _contract_result(method_audit)
    yield Line(sentence, style=f"bold {colour}")
    if method_audit.smallest_tv is not None:
        yield Line(
            f"Power: if the method moved a mean total variation of {method_audit.smallest_tv:.3f} "
            f"to or from the likeliest token, the {method_audit.num_tokens} sampled tokens would "
            f"show it in {POWER:.0%} of runs. --full shows every test."
        )


def _failure(name: str, reason: str) -> Iterator[Part]:
    yield Line(f"FAILED  {name}", style="bold red")
    yield Line(reason, indent=8)


def _contract_result(method_audit: MethodAudit) -> tuple[str, str]:
    """The result of a contract in a sentence, and its colour.

    A contract is the tests of one method; each line of `fault` is an error that ended some of them.
    The status is "no difference" if all passed, "lossy" if a method that does not claim to be
    lossless failed as a sampler alone, else "bug". `failures` are the failed `tests`.
    """
    num_faults = len(method_audit.fault.splitlines())
    num_tests = len(method_audit.tests) + num_faults
    num_failed = len(method_audit.failures) + num_faults
    failed_of_all = f"{num_failed} of {num_tests} tests of {method_audit.method}"
    if method_audit.status == "lossy":
        return f"lossy, as declared: {failed_of_all} failed.", "yellow"
    if method_audit.status != "no difference":
        return f"FAILED: {failed_of_all}.", "red"
    if is_idle(method_audit):  # no right token could be planted in its trees
        return (
            f"Not judged: {method_audit.method} proposed no draft token on the prompts of the "
            "audit.",
            "yellow",
        )
    return f"Passed: {num_tests} tests of {method_audit.method}.", "green"


def _greedy_table(audit: Audit, header: RunHeader) -> Table:
    """One row per method with greedy answers.

    An agreement counts a method's answers that were compared with vanilla's, and the identical ones
    among them. `first_position` is that of the earliest token that differs. `largest_gap` is the
    largest distance of such a token of the method below the target's best logit. Both are None
    without a difference.
    """
    rows = []
    for greedy in audit.greedy:
        agreement = greedy.agreement
        first_position, largest_gap = agreement.first_position, greedy.largest_gap
        cell_texts = (  # before the status, in the order of the headings below
            f"{agreement.num_identical} of {agreement.num_compared}",
            "" if first_position is None else f"token {first_position}",
            "" if largest_gap is None else f"{largest_gap:.3g}",
        )
        label = header.method(agreement.method).label
        rows.append(status_row(agreement.method, label, cell_texts, greedy.status))
    return group_table(["identical", "first\ndifference", "largest\ngap", "status"], rows)


def _differences(audit: Audit, header: RunHeader) -> Iterator[Part]:
    """A table of the differences from vanilla's greedy answers, bugs and largest gaps first.

    It has at most MOST_DIFFERENCES rows; a line after it counts the others.
    """
    # Each difference with the audit of its method.
    pairs = [(greedy, difference) for greedy in audit.greedy for difference in greedy.differences]
    if not pairs:
        return
    pairs.sort(key=lambda pair: _severity(pair[1]), reverse=True)
    # Token ids of both sides; the gap of logits; the largest gap that rounding explains.
    headings = ["token", "vanilla", "method", "gap", "near-tie\nup to"]
    # The dtype in which steps were run again; None if they were not.
    if audit.recheck_dtype:
        headings.append(f"again in\n{audit.recheck_dtype}")
    rows = [
        _difference_row(greedy, difference, header, has_recheck=bool(audit.recheck_dtype))
        for greedy, difference in pairs[:MOST_DIFFERENCES]
    ]
    yield group_table([*headings, "status"], rows, heading="Difference")
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
    """A difference: position, both tokens, gap of the method's token to the best, and threshold.

    `greedy` is the method's audit at temperature 0. A divergence has a record's key, the first
    position that differs and both token ids, None for an answer that had ended. A gap is the
    distance of a token's logit from the target's best one, None without both tokens; rounding
    explains gaps up to the threshold. With `has_recheck`, a last cell says if the step, run again,
    gave vanilla's tokens.
    """
    divergence = difference.divergence
    key = divergence.key
    label = f"{header.method(key.method).label} on {key.sample_id}"
    if key.turn:  # of the chat, from 0
        label += f", turn {key.turn + 1}"
    if key.repeat:  # the pass over the prompts, from 0
        label += f", pass {key.repeat + 1}"
    token_ids = (divergence.baseline_token, divergence.own_token)
    cell_texts = [
        str(divergence.position),  # in the answer
        *("ended" if token is None else str(token) for token in token_ids),
        formats.NONE if difference.gap is None else f"{difference.gap:.3g}",
        f"{difference.threshold:.3g}",
    ]
    if has_recheck:
        # None: the step was not run again.
        recheck_texts = {None: formats.NONE, True: "same", False: "differs"}
        cell_texts.append(recheck_texts[difference.is_same_again])
    status = difference.status
    if status == "bug" and not greedy.is_lossless:  # the method does not claim to be
        status = "lossy"
    return status_row(key.method, label, cell_texts, status)


def _methods_table(audit: Audit, header: RunHeader) -> Table:
    """One row per method and temperature; columns that are empty in all rows are left out."""
    # Of each method: its texts by the headings of their columns.
    texts_of_rows = [_method_texts(method_audit) for method_audit in audit.methods]
    headings = [
        heading
        for heading in texts_of_rows[0]
        if any(text_by_heading[heading] for text_by_heading in texts_of_rows)
    ]
    rows = []
    for method_audit, text_by_heading in zip(audit.methods, texts_of_rows, strict=True):
        label = header.method(method_audit.method).label
        cell_texts = [text_by_heading[heading] for heading in headings]
        rows.append(status_row(method_audit.method, label, cell_texts, method_audit.status))
    return group_table([*headings, "status"], rows)


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


def _p_value(method_audit: MethodAudit, subject: str) -> str:
    """The smallest p-value of a method's tests of one subject, such as tokens; empty if none has
    one.

    A test that failed without a p-value counts as 0.
    """
    p_values = []
    for test in method_audit.tests:
        if test.subject != subject:
            continue
        if test.p_value is not None:
            p_values.append(test.p_value)
        elif test.is_failed:
            p_values.append(0.0)
    return f"{min(p_values):.2g}" if p_values else ""


def _sentences(audit: Audit) -> Iterator[str]:
    """The result of an audit, then how to read the columns of its tables.

    `dtype` is the run's dtype, `recheck_dtype` the dtype in which steps were run again, or None.
    `statuses` has the status of every method; "numerics" are differences that rounding explains.
    """
    if audit.has_bug:
        yield "A method that claims to be lossless is not: see the rows with status bug."
    elif audit.unjudged:
        yield "No bug found, but not everything that was requested could be judged."
    else:
        yield "No bug found: every method that claims to be lossless passed."
    # Requested methods without a verdict, with the reason.
    for label_and_reason in audit.unjudged:
        yield f"Not judged: {label_and_reason}."
    if audit.greedy and audit.statuses & {"numerics", "bug"}:
        yield (
            "gap: how far the method's token lies below the best one in the target's logits. "
            "Rounding explains gaps up to the near-tie, but no larger ones."
        )
        if not audit.recheck_dtype and audit.dtype != "float32":
            yield (
                "Use --dtype float32 to run these steps again: near-ties are a thousand times "
                "rarer there."
            )
    test_names = {test.name for audited in audit.methods for test in audited.tests}
    dtype = audit.recheck_dtype or audit.dtype  # of the audit's own logits
    # Tests of logits: of their deviation and, if rounding is equal, of all their bits.
    if dtype != "float32" and "deviation" in test_names and "bits" not in test_names:
        yield (
            f"In {dtype} rounding hides small differences of logits, such as those of one "
            "layer's stale keys. --dtype float32 finds them."
        )
    if any(audited.num_tokens for audited in audit.methods):
        yield (
            f"p: corrected for all tests (Holm); a test fails below {ALPHA}. smallest TV: the "
            f"smallest error that {POWER:.0%} of audits would find, as the mean total variation "
            "that is moved to or from the likeliest token. --power TV draws enough tokens to find "
            "a smaller one."
        )
