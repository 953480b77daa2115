"""Print the pages of judges: checks, comparisons and audits.

A judge lists the parts of its page from top to bottom. Only this module prints on a terminal.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from rich.console import Console, RenderableType
from rich.text import Text

from specbench.analysis.stats.estimates import Missing
from specbench.judge.checks import Check, CheckedRun
from specbench.report import formats
from specbench.report.console import Prose, TextTable, text_table
from specbench.report.export.terminal import notes_grid, print_parts, report_console
from specbench.report.layout import draw
from specbench.report.table import Table
from specbench.report.texts import Note

_HEADINGS = ("Method", "Task", "Check", "Baseline", "Now", "Result")


class Line(NamedTuple):
    """A line of text, which is wrapped on a terminal."""

    text: str
    style: str = ""
    """The colour and weight of the text, as rich spells them."""
    indent: int = 0
    """Spaces before the text."""


BLANK = Line("")
Part: TypeAlias = Line | Table | TextTable | tuple[Note, ...]
"""A part of a page: a line of text, a table of numbers or of texts, or notes. A blank line
follows each table of numbers.
"""


def print_page(parts: Iterable[Part], console: Console | None = None) -> None:
    """Print one part below the other, on stdout unless a console is given."""
    console = console or report_console()
    renderables: list[RenderableType] = []
    for page_part in parts:
        if isinstance(page_part, Table):
            renderables += draw(page_part, console.width)  # in several pieces if it is too wide
        elif isinstance(page_part, TextTable):
            renderables.append(page_part)
        elif not isinstance(page_part, Line):  # notes
            renderables.append(notes_grid(page_part))
        elif page_part.indent:
            renderables.append(Prose(page_part.text, page_part.style, indent=page_part.indent))
        else:
            renderables.append(Text(page_part.text, style=page_part.style))
    print_parts(renderables, console)


def print_checks(runs: Sequence[CheckedRun], console: Console | None = None) -> None:
    """Print failed cells, summary and notes of each run, on stdout unless a console is given."""
    print_page(_page(runs), console)


def _page(runs: Sequence[CheckedRun]) -> Iterator[Part]:
    """For each run, a table of the failed checks of cells, the summary, and the notes.

    A cell is a method on a task. A check of the whole run has no cell, and so no row in the table.
    """
    for run in runs:
        failures = [check for check in run.failures if check.cell]
        if failures:
            yield _failures_table(failures)
            yield BLANK
        yield Line(run.summary, style=f"bold {_colour(run)}")
        if len(runs) == 1:
            yield BLANK
        yield run.notes


def _colour(run: CheckedRun) -> str:
    if run.failures:
        return "red"
    return "green" if run.is_passed and not run.is_doubtful else "yellow"


def _failures_table(failures: Sequence[Check]) -> TextTable:
    """A table with a row per failed check. Checks that differ only in the task share a row."""
    # (method, name of the check, number in the baseline, number now, result in words) -> checks
    checks_by_texts: dict[tuple[str, ...], list[Check]] = defaultdict(list)
    for check in failures:
        before, now = _numbers(check)  # as texts; empty if the check has none
        checks_by_texts[check.method, check.name, before, now, check.text].append(check)
    rows = []
    for (method, name, before, now, result_text), checks in checks_by_texts.items():
        task = checks[0].task if len(checks) == 1 else f"{len(checks)} tasks"
        rows.append((method, task, name, before, now, result_text))
    return text_table(_HEADINGS, rows)


def _numbers(check: Check) -> tuple[str, str]:
    """The numbers of a check in the baseline and in this run, as texts; empty if one is missing."""
    if isinstance(check.value, Missing) or isinstance(check.before, Missing):
        return "", ""
    if check.name == "MAT":
        return formats.mat(check.before), formats.mat(check.now)
    return f"{formats.rate(check.before)} tok/s", f"{formats.rate(check.now)} tok/s"
