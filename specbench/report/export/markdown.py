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
    """The whole report as Markdown, with a run's best numbers on each task in bold."""
    lines = [f"# {escape(report.title)}", ""]
    if report.prompts:  # the number of prompts by source, in words; empty if unknown
        lines += [f"{escape(report.prompts)}.", ""]
    if report.load_notes:  # on servers: which method is best at each number of requests at once
        lines += [*note_lines(report.load_notes), ""]
    for block in report.blocks:  # the results at a temperature
        lines += [*_block(report, block), ""]
    # numbers by category of the prompts; no tables if they have none
    for table in task_tables.by_category(report):
        lines += [f"{table.title}:", "", *table_lines(table), ""]
    lines += note_lines(report.later_notes)  # origin and definitions of the numbers, warnings
    return "\n".join(lines) + "\n"


def files(report: Report) -> Mapping[str, str]:
    """The report with its plots below."""
    gallery = [
        f"\n## {plot.title}\n\n![{plot.title}]({plot.name}.svg)\n\n{plot.caption}\n"
        for plot in report.plots
    ]
    return {"table.md": render(report) + "".join(gallery)}


def escape(text: str) -> str:
    """Text that Markdown shows unchanged, on one line."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def note_lines(notes: Iterable[Note]) -> Iterable[str]:
    """The notes as a list."""
    return (f"- **{escape(note.label)}:** {escape(note.text)}" for note in notes)


def _block(report: Report, block: Block) -> Iterable[str]:
    """The lines of Markdown for one temperature: tables, verdicts of the runs, recommendations.

    `block` has the results of each run at this temperature. A verdict says in a sentence or two
    which method is the fastest. A recommendation says which method to use.
    """
    yield f"## {block.heading}"
    parts = (task_tables.PLUS_MINUS, task_tables.MAT)  # a task's columns: speedup with ±, MAT
    main_table = task_tables.by_task(report, block, parts)
    # The main table, then the others, such as step costs. At a rate, or with several requests at
    # once, throughput comes first.
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
    """The lines of a table in Markdown: headings, a rule, then the rows of each group.

    The label of a group, if it has one, is a separate row before the group's rows. The first column
    has the labels of the rows, below `table.heading`; `table.columns` are all other columns.
    """
    yield _line([table.heading, *(escape(column.title) for column in table.columns)])
    yield f"| --- |{' ---: |' * len(table.columns)}"
    for group in table.groups:  # the rows of a run or task
        if group.label:  # its name, or empty
            blanks = [""] * len(table.columns)
            yield _line([f"*{escape(group.label)}*", *blanks])
        for row in group.rows:
            yield _line([escape(row.label), *_cells(table, row)])  # texts of its cells


def _cells(table: Table, row: Row) -> Iterable[str]:
    """The texts of a row's cells. If a task has no numbers, its first cell has the reason."""
    for _, cells in table.by_task(row.cells):
        texts = [f"**{cell.text}**" if cell.is_best else cell.text for cell in cells]
        yield cells[0].reason or texts[0]
        yield from texts[1:]


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"
