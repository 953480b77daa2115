"""Print an audit: a table of methods, the largest differences, and sentences."""

from collections.abc import Iterator

from msgspec.structs import replace
from rich.console import Console

from specbench.audit.results import ALPHA, Audit, Difference, GreedyAudit, is_idle
from specbench.audit.tables import SUBJECTS, TestTexts, status_row, tests_table
from specbench.audit.token_tests import POWER
from specbench.judge.printer import BLANK, Line, Part, print_page
from specbench.log.audit import MethodAudit
from specbench.log.header import RunHeader
from specbench.report import formats
from specbench.report.table import Row, Table, group_table

MOST_DIFFERENCES = 20
"""Largest number of differences to list."""


def print_audit(
    audit: Audit, header: RunHeader, console: Console, *, is_full: bool = False
) -> None:
    """Print the tables and sentences of an audit. With `is_full`, every test is printed."""
    print_page(_audit_page(audit, header, is_full=is_full), console)


def _audit_page(audit: Audit, header: RunHeader, *, is_full: bool) -> Iterator[Part]:
    """The tables and sentences of an audit, as parts of a page.

    `header` is the run's. With `is_full` all tests have a row, otherwise only the failed ones.
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
        # each with the method and its sampling temperature (the run's or a raised one) in words
        labelled_audits = [
            (
                f"{header.method(method_audit.method).label} at T={method_audit.level:g}",
                method_audit,
            )
            for method_audit in audit.methods
        ]
        yield from tests_table(labelled_audits, is_full=is_full)
    for sentence in _sentences(audit):
        yield Line(sentence)


def print_contract(method_audit: MethodAudit, console: Console, *, is_full: bool) -> None:
    """Print the failed tests of a method, or all tests if `is_full`."""
    print_page(_contract_page(method_audit, is_full=is_full), console)


def _contract_page(method_audit: MethodAudit, *, is_full: bool) -> Iterator[Part]:
    """The tests of a method's contract, its faults, and the result, as parts of a page.

    With `is_full` there is a table of all tests. Otherwise there are two lines per failed test, and
    a last line that names --full. If tokens were sampled, a sentence after the result gives the
    smallest error that their tests would find.
    """
    if is_full:
        without_fault = replace(method_audit, fault="")  # faults follow, in lines of their own
        yield from tests_table([(method_audit.method, without_fault)], is_full=True)
    # A line of `fault` is "part of the contract: the error that ended it".
    for fault in method_audit.fault.splitlines():
        part_name, _, error_message = fault.partition(": ")
        yield from _failure(part_name, error_message)
    if not is_full:
        for test in method_audit.failures:
            test_texts = TestTexts.of(test)
            bound = test_texts.bound
            if test.p_value is not None:
                bound = f"p = {bound}"
            reason = f"{test_texts.effect} in {test_texts.num} ({bound})"
            yield from _failure(test_texts.name, reason)
    sentence, colour = _contract_result(method_audit)
    yield Line(sentence, style=f"bold {colour}")
    if method_audit.smallest_tv is not None:  # None: no tokens were sampled
        yield Line(
            f"Power: {POWER:.0%} of audits with {method_audit.num_tokens} sampled tokens would "
            f"find an error that moves a mean probability of {method_audit.smallest_tv:.3f} to or "
            "from the likeliest token."
        )
    if not is_full:
        yield Line("--full shows every test.")


def _failure(name: str, reason: str) -> Iterator[Part]:
    """Two lines about a failed test: its name and the reason."""
    yield Line(f"FAILED  {name}", style="bold red")
    yield Line(reason, indent=8)


def _contract_result(method_audit: MethodAudit) -> tuple[str, str]:
    """The result of a method's contract as a sentence, and the colour of the sentence."""
    num_faults = len(method_audit.fault.splitlines())  # a line per error that ended a part
    num_tests = len(method_audit.tests) + num_faults
    num_failed = len(method_audit.failures) + num_faults
    failed_of_all = f"{num_failed} of {num_tests} tests of {method_audit.method}"
    if method_audit.status == "lossy":  # the method does not claim to be lossless
        return f"Lossy, as declared: {failed_of_all} failed.", "yellow"
    if method_audit.status != "no difference":  # a test failed, or an error ended a part
        return f"FAILED: {failed_of_all}.", "red"
    if is_idle(method_audit):  # the method never drafted, so its drafts were not tested
        return (
            f"Not judged: {method_audit.method} proposed no draft token on the prompts of the "
            "audit.",
            "yellow",
        )
    return f"Passed: {num_tests} tests of {method_audit.method}.", "green"


def _greedy_table(audit: Audit, header: RunHeader) -> Table:
    """A table of how far greedy answers agree with vanilla's, with a row per method.

    The first column has the number of identical answers, the second the earliest position at which
    an answer differs. The third has the largest gap of logits between the target's best token and a
    method's token that differs. The last has the status. Without a difference, the second and third
    are empty. The gap is also empty if answers differ only in that they ended early.
    """
    rows = []
    for greedy in audit.greedy:
        agreement = greedy.agreement
        first_position, largest_gap = agreement.first_position, greedy.largest_gap
        cell_texts = (  # all columns but the status
            f"{agreement.num_identical} of {agreement.num_compared}",
            "" if first_position is None else f"token {first_position}",
            "" if largest_gap is None else f"{largest_gap:.3g}",
        )
        label = header.method(agreement.method).label
        rows.append(status_row(agreement.method, label, cell_texts, greedy.status))
    return group_table(["identical", "first\ndifference", "largest\ngap", "status"], rows)


def _differences(audit: Audit, header: RunHeader) -> Iterator[Part]:
    """A table of the differences from vanilla's greedy answers, with bugs first.

    Bugs, and then other differences, are sorted by (gap / the largest gap that rounding explains),
    from large to small. The table has at most MOST_DIFFERENCES rows. A line below it counts the
    others.
    """
    # a method's greedy audit, and one of its differences
    pairs = [(greedy, difference) for greedy in audit.greedy for difference in greedy.differences]
    if not pairs:
        return
    pairs.sort(key=lambda pair: _severity(pair[1]), reverse=True)
    headings = ["token", "vanilla", "method", "gap", "near-tie\nup to"]
    if audit.recheck_dtype:  # steps were run again in this dtype
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
    """The sort key of a difference. Bugs are largest, then gaps that are large compared with their
    threshold. If an answer had ended, the gap counts as infinite.
    """
    gap = float("inf") if difference.gap is None else difference.gap
    return difference.status == "bug", gap / difference.threshold


def _difference_row(
    greedy: GreedyAudit, difference: Difference, header: RunHeader, *, has_recheck: bool
) -> Row:
    """The table row of one difference from vanilla.

    The cells are the position in the answer, the token ids of vanilla and of the method, the gap of
    logits from the best token to the method's, the largest gap that rounding explains, and the
    status.

    Args:
        greedy: the comparison of the method's greedy answers with vanilla's.
        difference: the difference.
        header: the run's header, with the names of methods for readers.
        has_recheck: True to add a cell that says if the step gave vanilla's tokens when run again.
    """
    divergence = difference.divergence
    key = divergence.key
    label = f"{header.method(key.method).label} on {key.sample_id}"
    if key.turn:  # counted from 0
        label += f", turn {key.turn + 1}"
    if key.repeat:  # the pass over the prompts, counted from 0
        label += f", pass {key.repeat + 1}"
    token_ids = (divergence.baseline_token, divergence.own_token)  # None: the answer had ended
    cell_texts = [
        str(divergence.position),
        *("ended" if token_id is None else str(token_id) for token_id in token_ids),
        formats.NONE if difference.gap is None else f"{difference.gap:.3g}",
        f"{difference.threshold:.3g}",
    ]
    if has_recheck:
        recheck_texts = {None: formats.NONE, True: "same", False: "differs"}  # None: not run again
        cell_texts.append(recheck_texts[difference.is_same_again])
    status = difference.status
    if status == "bug" and not greedy.is_lossless:
        status = "lossy"
    return status_row(key.method, label, cell_texts, status)


def _methods_table(audit: Audit, header: RunHeader) -> Table:
    """A table that sums up the tests, with a row per method and sampling temperature of its tests.

    Columns that are empty in all rows are left out.
    """
    # for each row: heading of a column -> text; the status is not included
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


def _method_texts(method_audit: MethodAudit) -> dict[str, str]:
    """A row about a method at a temperature: heading of a column -> text."""
    deviations = [test.effect for test in method_audit.tests if test.name == "deviation"]
    same_again = ""  # how many repeated answers came out the same
    if method_audit.num_replayed:
        same_again = f"{method_audit.num_same} of {method_audit.num_replayed}"
    return {
        "T": f"{method_audit.level:g}",
        "same\nagain": same_again,
        "logits\n(epsilon)": f"{max(deviations):.3g}" if deviations else "",
        **{f"p of\n{name}": _p_value(method_audit, key) for key, name in SUBJECTS.items()},
        "tokens\ntested": str(method_audit.num_tokens or ""),
        "smallest\nTV": ""
        if method_audit.smallest_tv is None
        else f"{method_audit.smallest_tv:.3f}",
    }


def _p_value(method_audit: MethodAudit, subject: str) -> str:
    """The smallest p-value of a method's tests of a subject, such as "tokens", as text.

    The text is empty if no test of the subject has a p-value. A test that failed by a limit counts
    as 0.
    """
    p_values = [
        test.p_value or 0.0
        for test in method_audit.tests
        if test.subject == subject and (test.p_value is not None or test.is_failed)
    ]
    return f"{min(p_values):.2g}" if p_values else ""


def _sentences(audit: Audit) -> Iterator[str]:
    """Sentences about an audit: first the result, then how to read the columns of the tables."""
    if audit.has_bug:
        yield "A method that claims to be lossless is not: see the rows with status bug."
    elif audit.unjudged:
        yield "No bug found, but not everything that was requested could be judged."
    else:
        yield "No bug found: every method that claims to be lossless passed."
    for methods_and_reason in audit.unjudged:  # "methods: reason"
        yield f"Not judged: {methods_and_reason}."
    if audit.greedy and audit.statuses & {"numerics", "bug"}:  # there may be gaps in a table
        yield (
            "gap: the target's largest logit minus its logit for the method's token. Rounding "
            "explains gaps up to the limit for near-ties, but no larger ones."
        )
        if not audit.recheck_dtype and audit.dtype != "float32":  # no step was run again
            yield (
                "Use --dtype float32 to run these steps again: near-ties are a thousand times "
                "rarer there."
            )
    test_names = {test.name for method_audit in audit.methods for test in method_audit.tests}
    dtype = audit.recheck_dtype or audit.dtype  # of the logits that were tested
    # "deviation" tests how far logits differ. "bits" tests if they differ at all, which is not
    # always possible.
    if dtype != "float32" and "deviation" in test_names and "bits" not in test_names:
        yield (
            f"In {dtype}, rounding hides small differences between logits, such as those caused "
            "by stale keys in one layer. --dtype float32 finds them."
        )
    if any(method_audit.num_tokens for method_audit in audit.methods):  # tokens were sampled
        yield (
            f"p: corrected for all tests (Holm); a test fails below {ALPHA}. smallest TV: the "
            f"smallest error that {POWER:.0%} of audits would find, as the mean probability (total "
            "variation) moved to or from the likeliest token. --power TV draws enough tokens to "
            "find a smaller one."
        )
