"""A report in LaTeX: the papers' table, ready to \\input.

The intervals are arguments of a macro that shows nothing until the
author defines it: the intervals of six tasks do not fit on a page.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from specbench.report import task_tables
from specbench.report.results import Block, Report, Task
from specbench.report.table import METHOD, Cell, Row, Table
from specbench.report.texts import Note

_PREAMBLE = r"""
% Made by specbench. In your preamble:
%   \usepackage[T1]{fontenc}
%   \usepackage{booktabs}
% In your text:
%   \input{table}
% To show the interval of each speedup (95 %), before \input:
%   \newcommand{\specbenchinterval}[2]{\,{\tiny[#1,\,#2]}}
""".lstrip()

_DEFINITIONS = r"""
\providecommand{\specbenchinterval}[2]{}
\providecommand{\specbenchother}[1]{\ifdefined\Umathcode#1\else?\fi}% a sign that pdfLaTeX lacks
""".lstrip()

_APART = "\0"
"""Stands between two signs until it is written as an empty group."""
_LIGATURE = re.compile(r"(?<=-)(?=-)|(?<=')(?=')|(?<=:)(?=:)|(?<=,)(?=,)")
"""The places between two hyphens, apostrophes or commas, which LaTeX would join into one sign,
and between two colons, which a CI log may read as a command.
"""
_NAMES = {"\\": "backslash", "^": "asciicircum", "~": "asciitilde", '"': "quotedbl"}
_NAMES |= {"<": "less", ">": "greater", "|": "bar", "`": "asciigrave"}
_SIGNS = {
    **{sign: rf"\{sign}" for sign in "{}$&#%_"},
    **{sign: rf"\text{name}{{}}" for sign, name in _NAMES.items()},
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "±": r"\ensuremath{\pm}",
    "×": r"\ensuremath{\times}",
    "τ": r"\ensuremath{\tau}",
    "\u00a0": "~",
    _APART: "{}",
}


def render(report: Report) -> str:
    """A `table*` environment. It needs only booktabs."""
    warnings = [f"% Warning: {_line(note.text)}\n" for note in report.notes if note.is_warning]
    column_types = "l" + "r" * (2 * len(report.tasks))
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{_caption(report)}}}",
        r"\label{tab:specbench}",
        r"\par\medskip",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{1pt}",
        rf"\begin{{tabular}}{{@{{}}{column_types}@{{}}}}",
        r"\toprule",
        *_header(report.tasks),
    ]
    for block in report.blocks:
        lines += _block(report, block)
    lines += [r"\bottomrule", r"\end{tabular}", *_remarks(report.notes), r"\end{table*}", ""]
    return _PREAMBLE + "".join(warnings) + _DEFINITIONS + "\n".join(lines)


def files(report: Report) -> Mapping[str, str]:
    """The table as `table.tex`."""
    return {"table.tex": render(report)}


def escape(text: str) -> str:
    """Text that LaTeX shows unchanged, on one line; pdfLaTeX shows "?" for characters it lacks."""
    return "".join(map(_sign, _LIGATURE.sub(_APART, _line(text))))


def _sign(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isascii():
        return sign if sign.isprintable() else ""
    if sign.isalpha() and ord(sign) < 0x180 and sign not in "ĦħĿŀŉŦŧ":  # T1 has these
        return unicodedata.normalize("NFC", sign)
    return rf"\specbenchother{{{sign}}}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _caption(report: Report) -> str:
    """The caption in LaTeX: the report's title, and the meaning of the numbers and of bold ones.

    A sentence on intervals, if any, is cut from the definition of the speedup: the table hides
    them.
    """
    # a note of the report is a text under a label; the label "Speedup" has its definition
    text_by_label = {note.label: note.text for note in report.notes}
    speedup_definition = text_by_label.get("Speedup", "").partition(" Intervals")[0].rstrip(".")
    sentences = [
        f"{escape(report.caption)}.",  # model, machine, dtype and prompts
        f"Speedup: {escape(speedup_definition)}.",
        r"$\tau$: mean accepted tokens, emitted per step of the target model.",
    ]
    if len(report.tasks) > 1:
        sentences.append("Mean: the arithmetic mean of the tasks' values.")
    # a run is a group of rows
    best = "The best of each column" if report.is_one_run else "The best of each group and column"
    sentences.append(rf"{best} is in \textbf{{bold}}.")
    return " ".join(sentences)


def _header(tasks: Sequence[Task]) -> Iterable[str]:
    """The rows of the head in LaTeX: task titles, numbers of samples if any, then headings.

    Column 1 is the method's (`METHOD` is its heading). Each task has two more, its speedup and
    its tau (MAT). The last task may be the mean over the tasks.
    """
    if not tasks:
        yield rf"{METHOD} \\"
        return
    yield _above_pairs([task.title for task in tasks])  # a row, a text above two columns each
    if any(task.n for task in tasks):  # the number of samples as text, "" for the mean
        yield _above_pairs([f"n={task.n}" if task.n else "" for task in tasks])
    first_columns = range(2, 2 + 2 * len(tasks), 2)  # the speedup's column of each task, from 1
    yield " ".join(rf"\cmidrule(lr){{{column}-{column + 1}}}" for column in first_columns)
    headings = r"Speedup & \multicolumn{1}{c}{$\tau$}"  # of a task's two columns
    yield " & ".join([METHOD, *[headings] * len(tasks)]) + r" \\"


def _above_pairs(words: Sequence[str]) -> str:
    """A row of the header with a word above each pair of columns."""
    cells = [rf"\multicolumn{{2}}{{c}}{{{escape(word)}}}" for word in words]
    return " & ".join(["", *cells]) + r" \\"


def _block(report: Report, block: Block) -> Iterable[str]:
    """The lines of LaTeX for one temperature: its heading, then a row per method of each run.

    `block` has the results at this temperature. Each task has two columns, speedup and MAT.
    """
    table = task_tables.by_task(report, block)
    num_columns = 1 + len(table.columns)  # with the column of methods
    yield r"\midrule"
    yield rf"\multicolumn{{{num_columns}}}{{c}}{{{escape(block.heading)}}} \\"
    for group in table.groups:  # the rows of a run
        yield r"\midrule"
        if group.label:  # the run's name; empty if there is one run
            label = rf"\emph{{{escape(group.label)}}}"
            yield rf"\multicolumn{{{num_columns}}}{{@{{}}l}}{{{label}}} \\"
        for row in group.rows:
            # the method's name, then its cells, or a reason in place of missing ones
            yield " & ".join([escape(row.label), *_cells(table, row)]) + r" \\"


def _cells(table: Table, row: Row) -> Iterable[str]:
    if row.reason and row.cells:
        return [rf"\multicolumn{{{len(row.cells)}}}{{c}}{{{escape(row.reason)}}}"]
    return [_task_cells(cells) for _, cells in table.by_task(row.cells)]


def _task_cells(cells: Sequence[Cell]) -> str:
    """The cells of a task, or the reason why they are empty."""
    if reason := cells[0].reason:
        return rf"\multicolumn{{{len(cells)}}}{{c}}{{{escape(reason)}}}"
    return " & ".join(map(_cell, cells))


def _cell(cell: Cell) -> str:
    latex = escape(cell.text)
    if cell.is_best:
        latex = rf"\textbf{{{latex}}}"
    if cell.interval:
        latex += rf"\specbenchinterval{{{cell.interval.low:.2f}}}{{{cell.interval.high:.2f}}}"
    return latex


def _remarks(notes: Sequence[Note]) -> Iterable[str]:
    """A paragraph of LaTeX below the table with the notes that its readers need, or nothing.

    They explain the marks "*" (not lossless) and "~" (significant by its interval, but not by
    the corrected test) and missing numbers. Warnings are for the author alone.
    """
    shown_notes = [note for note in notes if note.label in ("*", "~", "Missing")]
    if not shown_notes:
        return
    remarks = []
    for note in shown_notes:
        is_mark = note.label in ("*", "~")
        remarks.append(f"{note.label}: {note.text}" if is_mark else note.text)
    yield rf"\par\smallskip {escape(' '.join(remarks))}"
