"""Write a report in Markdown, with the same tables, verdicts and notes as on a terminal."""

import re
from collections.abc import Iterable, Mapping

from specbench.report import sections, task_tables
from specbench.report.results import Block, Report
from specbench.report.table import Row, Table
from specbench.report.texts import Note

_SPECIAL = re.compile(r"[\\|*_`<$]|~(?=~)|&(?=#?\w+;)|\](?=[(\[:])|(?<=:)[:/]|(?<=www)\.|@(?=\w)")
"""Matches signs that would begin markup, HTML, links or mentions."""


def render(report: Report) -> str:
    """Return the report as Markdown. The best numbers of a run on each task are bold."""
    lines = [f"# {escape(report.title)}", ""]
    if report.prompts:  # the number of prompts from each source, or ""
        lines += [f"{escape(report.prompts)}.", ""]
    if report.load_notes:  # for servers, which method is best at each load
        lines += [*note_lines(report.load_notes), ""]
    for block in report.blocks:  # the results at each temperature
        lines += [*_block(report, block), ""]
    # There are no tables if the prompts have no categories.
    for table in task_tables.by_category(report):
        lines += [f"{table.title}:", "", *table_lines(table), ""]
    lines += note_lines(report.later_notes)  # facts, definitions and warnings
    return "\n".join(lines) + "\n"


def files(report: Report) -> Mapping[str, str]:
    """Return the report with its plots below."""
    gallery = [
        f"\n## {plot.title}\n\n![{plot.title}]({plot.name}.svg)\n\n{plot.caption}\n"
        for plot in report.plots
    ]
    return {"table.md": render(report) + "".join(gallery)}


def escape(text: str) -> str:
    """Escape the text, so that Markdown shows it unchanged on one line."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def note_lines(notes: Iterable[Note]) -> Iterable[str]:
    """Return the notes as a list."""
    return (f"- **{escape(note.label)}:** {escape(note.text)}" for note in notes)


def _block(report: Report, block: Block) -> Iterable[str]:
    """Yield the lines for one temperature: tables, verdicts and recommendations.

    `block` has the results of each run at this temperature. A verdict says which method is the
    fastest, and a recommendation says which method to use.
    """
    yield f"## {block.heading}"
    parts = (task_tables.PLUS_MINUS, task_tables.MAT)  # the columns of a task
    main_table = task_tables.by_task(report, block, parts)
    # The main table, then the others, such as step costs. At load, throughput comes first.
    for table in sections.tables(report, block, main_table):
        yield ""
        if table.title:  # the main table has none
            yield from (f"{table.title}:", "")
        yield from table_lines(table)
    for run in block.runs:
        label = "" if report.is_one_run else f"**{escape(run.source.label)}:** "
        yield ""
        yield label + escape(run.verdict)
    for recommendation in block.recommendations:
        yield ""
        yield f"**{escape(recommendation)}**"


def table_lines(table: Table) -> Iterable[str]:
    """Yield the lines of a table: headings, a rule, then the rows of each group.

    If a group has a label, the label is a row before the rows of the group. The first column has
    the labels of the rows below `table.heading`, and `table.columns` are all other columns.
    """
    yield _line([table.heading, *(escape(column.title) for column in table.columns)])
    yield f"| --- |{' ---: |' * len(table.columns)}"
    for group in table.groups:  # the rows of each run or task
        if group.label:  # the name of the run or task, or ""
            blanks = [""] * len(table.columns)
            yield _line([f"*{escape(group.label)}*", *blanks])
        for row in group.rows:
            yield _line([escape(row.label), *_cells(table, row)])  # the texts of its cells


def _cells(table: Table, row: Row) -> Iterable[str]:
    """Yield the texts of a row's cells. If a task has no numbers, its first cell has the reason."""
    for _, cells in table.by_task(row.cells):
        texts = [f"**{cell.text}**" if cell.is_best else cell.text for cell in cells]
        yield cells[0].reason or texts[0]
        yield from texts[1:]


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"
