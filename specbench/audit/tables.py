"""Tables of an audit on a terminal, with a status in the last column of each row."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from specbench.log.audit import AuditStatus, AuditTest, MethodAudit
from specbench.report.table import Cell, Row, Table, Tone, group_table

SUBJECTS = {"guesses": "drafts", "tokens": "tokens", "rule": "rule"}
"""The subjects of tests with p-values, with their names on a terminal."""

_TONES: dict[AuditStatus, Tone] = {"bug": "bad", "numerics": "unsure", "lossy": "unsure"}


def status_row(method: str, label: str, texts: Iterable[str], status: AuditStatus) -> Row:
    """A row of texts that ends with a status."""
    status_cell = Cell(status, tone=_TONES.get(status, ""))
    return Row(method, label, cells=(*map(Cell, texts), status_cell))


def tests_table(results: Iterable[tuple[str, MethodAudit]], *, is_full: bool) -> Iterator[Table]:
    """Yield a table of the tests that failed, or of all tests if `is_full`. A table without rows is
    left out.

    A row has a label, the test in words, and a status. An error that ended a method's answers
    (`fault`) has a row too. `results` are pairs of a label, which names a method and a temperature,
    and the method's tests at this temperature.
    """
    rows = []
    for label, method_audit in results:
        if method_audit.fault:
            fault_texts = TestTexts(name="answers", num="", effect=method_audit.fault, bound="")
            rows.append(status_row(method_audit.method, label, fault_texts, method_audit.status))
        shown_tests = method_audit.tests if is_full else method_audit.failures
        for test in shown_tests:
            # A failed test shows the status of the method at this temperature, such as "bug".
            status: AuditStatus = method_audit.status if test.is_failed else "no difference"
            rows.append(status_row(method_audit.method, label, TestTexts.of(test), status))
    if rows:
        headings = ("test", "of", "effect", "p, or\nlimit", "status")
        yield group_table(headings, rows, heading="Test")


class TestTexts(NamedTuple):
    """A test in words."""

    name: str
    num: str
    """The number of answers, tokens or other units that were tested."""
    effect: str
    """The size of the difference, with its unit."""
    bound: str
    """The p-value, or the largest effect that passes."""

    @classmethod
    def of(cls, test: AuditTest) -> "TestTexts":
        """The texts of a test."""
        bound = ""
        if test.p_value is not None:
            bound = f"{test.p_value:.2g}"
        elif test.limit is not None:
            bound = f"<= {test.limit:.3g}"
        effect = f"{test.effect:.3g} {test.unit}".strip()
        name = f"{SUBJECTS.get(test.subject, test.subject)}: {test.name}"
        return cls(name, str(test.num), effect, bound)
