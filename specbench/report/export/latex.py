"""Write the papers' table in LaTeX, to \\input into an article with two columns.

Marked notes below the table have the options and settings of methods. Tasks that do not fit side by
side continue in another table below. The intervals are arguments of a macro that shows nothing
until the author defines it, because the intervals of six tasks do not fit on a page.
"""

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase

from specbench.log.header import RunHeader
from specbench.report import task_tables
from specbench.report.latex_text import TEXT_WIDTH, TYPE_SIZE, escape, one_line, width_of
from specbench.report.results import MEAN, Block, MethodResults, Report, RunResults, Task
from specbench.report.table import METHOD, Cell, Row
from specbench.report.task_tables import MAT, SPEEDUP, Part

_PREAMBLE = r"""
% Made by specbench. In your preamble:
%   \usepackage[T1]{fontenc}
%   \usepackage{booktabs}
% In your text:
%   \input{table}
% To show the interval of each speedup (95 %), before \input (choose few --columns):
%   \newcommand{\specbenchinterval}[2]{\,[#1,\,#2]}
% methods.bib, or --format bibtex, has the papers of the methods.
""".lstrip()

_DEFINITIONS = r"""
\providecommand{\specbenchinterval}[2]{}
\providecommand{\specbenchours}[1]{#1 (ours)}
\providecommand{\specbenchother}[1]{\ifdefined\Umathcode#1\else?\fi}% a sign that pdfLaTeX lacks
""".lstrip()

_GAP = 2.0
"""The points of space on either side of a column."""
_PARTS = {"speedup": SPEEDUP, "mat": MAT}
_HEADINGS = {SPEEDUP: "Speedup", MAT: r"\multicolumn{1}{c}{$\tau$}"}
_WIDEST = {SPEEDUP: "Speedup", MAT: "0.00"}
"""The widest usual text in each kind of column."""
_WIDEST_TITLE, _WIDEST_LABEL = 60.0, 150.0
"""The largest planned widths, in points, of a task's title and of a method's name."""
_LONGEST_REASON = 8
"""The largest number of characters of a reason, such as "not run", that fits in place of numbers.
"""

Marks = Mapping[str, str]
"""The marks of the notes below the table, such as "(a)", by the text of the note."""


def render(report: Report) -> str:
    """Return a `table*` environment, which needs only booktabs."""
    warnings = [f"% Warning: {one_line(note.text)}\n" for note in report.notes if note.is_warning]
    marks = _marks(report)
    lines = [
        r"\begin{table*}[t]",
        r"\sloppy\centering",
        rf"\caption{{{_caption(report)}}}",
        r"\label{tab:specbench}",
        r"\par\medskip",
        rf"\fontsize{{{TYPE_SIZE}}}{{{TYPE_SIZE * 1.2:g}}}\selectfont",
        rf"\setlength{{\tabcolsep}}{{{_GAP:g}pt}}",
    ]
    for tasks in _panels(report):
        lines += _panel(report, tasks, marks)
    lines += [*_remarks(report, marks), r"\end{table*}", ""]
    return _PREAMBLE + "".join(warnings) + _DEFINITIONS + "\n".join(lines)


def files(report: Report) -> Mapping[str, str]:
    """Return the table as `table.tex`."""
    return {"table.tex": render(report)}


def _caption(report: Report) -> str:
    """Return the caption: the report's title, and what the numbers and bold type mean."""
    # The note labelled "Speedup" has the definition of the speedup.
    text_by_label = {note.label: note.text for note in report.notes}
    speedup_definition = text_by_label.get("Speedup", "").rstrip(".")
    sentences = [f"{escape(report.caption)}."]  # model, machine, dtype and prompts
    parts = _parts(report)  # speedup, MAT, or both
    if SPEEDUP in parts and speedup_definition:
        sentences.append(f"Speedup: {escape(speedup_definition)}.")
    if MAT in parts:
        sentences.append(r"$\tau$: mean accepted tokens, emitted per step of the target model.")
    if any(task.name == MEAN for task in _tasks(report)):
        sentences.append("Mean: the arithmetic mean of the tasks' values.")
    # The rows of each run are a group.
    best = "The best of each column" if report.is_one_run else "The best of each group and column"
    sentences.append(rf"{best} is in \textbf{{bold}}.")
    return " ".join(sentences)


def _parts(report: Report) -> list[Part]:
    """Return the numbers with a column for each task: the chosen ones, or all if none is chosen."""
    chosen = [part for name, part in _PARTS.items() if name in report.columns]
    return chosen or [*_PARTS.values()]


def _tasks(report: Report) -> list[Task]:
    """Return the tasks that have columns: the tasks, their mean, or both, as chosen.

    If none is chosen, all tasks have columns. A run without records may have no tasks.
    """
    has_tasks = any(name in report.columns for name in _PARTS)
    tasks = [
        task
        for task in report.tasks
        if ("mean" in report.columns if task.name == MEAN else has_tasks)
    ]
    return tasks or [*report.tasks]


def _panels(report: Report) -> list[list[Task]]:
    """Return the tasks of each table: as many as fit beside the methods' names.

    A task that is too wide even on its own has its own table. Widths are in points.
    """
    titles = [run.source.info.method(method.method).title for run, method in _every_method(report)]
    title_width = min(max(map(width_of, titles), default=0), _WIDEST_LABEL)
    # A method's title may be followed by a word for the author's methods, and by the mark of a
    # note.
    after_title = " (ours) (a)" if report.ours else " (a)"
    full_width = TEXT_WIDTH - title_width - width_of(after_title) - _GAP  # for the tasks of a table
    panels: list[list[Task]] = [[]]
    width_left = full_width  # the points that are left in the last panel
    for task in _tasks(report):
        task_width = _width(report, task)
        if task_width > width_left and panels[-1]:
            panels.append([])
            width_left = full_width
        panels[-1].append(task)
        width_left -= task_width
    return panels


def _width(report: Report, task: Task) -> float:
    """Estimate the width of a task's columns in points."""
    parts = _parts(report)
    numbers = sum(width_of(_WIDEST[part]) for part in parts) + 2 * _GAP * (len(parts) - 1)
    title = min(max(map(width_of, task.title.split()), default=0), _WIDEST_TITLE)
    return max(numbers, title) + 2 * _GAP


def _every_method(report: Report) -> list[tuple[RunResults, MethodResults]]:
    return [(run, method) for _, run in report.panels for method in run.methods]


def _marks(report: Report) -> Marks:
    """Return the mark of each text below the table: "(a)", ..., "(z)", "(aa)" and so on.

    The texts are the options and settings of methods, and reasons that are too long for a cell.
    """
    details = [_details(run.source.info, method) for run, method in _every_method(report)]
    reasons = [task.reason or "" for _, method in _every_method(report) for task in method.tasks]
    long_reasons = [reason for reason in reasons if len(reason) > _LONGEST_REASON]
    distinct_texts = dict.fromkeys(filter(None, [*details, *long_reasons]))
    letters = (ascii_lowercase[i % 26] * (i // 26 + 1) for i in range(len(distinct_texts)))
    return {text: f"({letter})" for text, letter in zip(distinct_texts, letters, strict=True)}


def _details(header: RunHeader, method: MethodResults) -> str:
    """Return a method's options, settings and threads in words, or "" without any."""
    return ", ".join(header.method(method.method).details)


def _label(report: Report, run: RunResults, method: MethodResults, marks: Marks) -> str:
    """Return the method's name in LaTeX with the mark of its details."""
    name = run.source.info.method(method.method)
    label = escape(name.title if name.is_lossless else f"{name.title}*")
    if method.method in report.ours:
        label = rf"\specbenchours{{{label}}}"
    details = _details(run.source.info, method)
    return f"{label} {marks[details]}" if details in marks else label


def _panel(report: Report, tasks: Sequence[Task], marks: Marks) -> Iterable[str]:
    """Yield the lines of a LaTeX table with columns for these tasks: a head, then each temperature.

    `marks` are the marks of the notes below the table, by the text of the note.
    """
    parts = _parts(report)  # speedup, MAT, or both
    num_columns = 1 + len(parts) * len(tasks)  # including the column of methods
    yield rf"\begin{{tabular}}{{@{{}}l{'r' * (num_columns - 1)}@{{}}}}"
    yield r"\toprule"
    yield from _header(tasks, parts)
    for block in report.blocks:  # the results at one temperature
        yield r"\midrule"
        # a line across the table: "Temperature=0"
        yield rf"\multicolumn{{{num_columns}}}{{c}}{{{escape(block.heading)}}} \\"
        yield from _block(report, block, tasks, marks)
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\par\medskip"


def _header(tasks: Sequence[Task], parts: Sequence[Part]) -> Iterable[str]:
    """Yield the rows of the head: titles of tasks, numbers of samples if any, and headings.

    Column 1 has the names of methods below the heading `METHOD`. Then each task has a column for
    each of `parts`: its speedup, its tau (MAT), or both. The last task may be the mean over tasks.
    """
    if not tasks:
        yield rf"{METHOD} \\"
        return
    num_parts = len(parts)
    # The words of a title are stacked.
    titles = [r"\shortstack{" + r"\\".join(map(escape, task.title.split())) + "}" for task in tasks]
    yield _above(titles, num_parts)  # a row with a text above the columns of each task
    if any(task.n for task in tasks):  # `task.n` is a text, which is "" for the mean
        yield _above([f"n={task.n}" if task.n else "" for task in tasks], num_parts)
    # the first column of each task, counted from 1
    first_columns = range(2, 2 + num_parts * len(tasks), num_parts)
    yield " ".join(  # a rule below the title of each task
        rf"\cmidrule(lr){{{column}-{column + num_parts - 1}}}" for column in first_columns
    )
    headings = [_HEADINGS[part] for part in parts]
    yield " & ".join([METHOD, *headings * len(tasks)]) + r" \\"


def _above(texts: Sequence[str], num_parts: int) -> str:
    """Return a row of the head with a LaTeX text above the columns of each task."""
    cells = [rf"\multicolumn{{{num_parts}}}{{c}}{{{text}}}" for text in texts]
    return " & ".join(["", *cells]) + r" \\"


def _block(report: Report, block: Block, tasks: Sequence[Task], marks: Marks) -> Iterable[str]:
    """Yield the lines for one temperature, with a row for each method of each run.

    `block` has the results at this temperature. `tasks` are the tasks with columns, some of
    `report.tasks`. `marks` are the marks of the notes below the table, by the text of the note.
    """
    parts = _parts(report)  # speedup, MAT, or both
    num_parts = len(parts)
    # The full table has the columns of the first task, then those of the second, and so on.
    full_table = task_tables.by_task(report, block, parts)
    # the first column of each task, from 0
    first_columns = [num_parts * report.tasks.index(task) for task in tasks]
    table = full_table.take([column + i for column in first_columns for i in range(num_parts)])
    runs = [run for run in block.runs if run.methods]
    for run, group in zip(runs, table.groups, strict=True):  # the rows of a run are a group
        yield r"\midrule"
        if group.label:  # the name of the run, or "" if there is only one
            num_columns = 1 + len(table.columns)
            label = rf"\emph{{{escape(group.label)}}}"
            yield rf"\multicolumn{{{num_columns}}}{{@{{}}l}}{{{label}}} \\"
        for method, row in zip(run.methods, group.rows, strict=True):
            # The name of the method, then its cells, or a reason instead of missing cells.
            label = _label(report, run, method, marks)
            yield " & ".join([label, *_cells(row, num_parts, marks)]) + r" \\"


def _cells(row: Row, num_parts: int, marks: Marks) -> Iterable[str]:
    """Yield the cells of a row, with a reason, or its mark, in place of missing cells.

    A task has `num_parts` cells. A reason replaces the cells of a task, or the whole row if all
    cells have the same reason. `marks` maps reasons to marks.
    """
    num_together = len(row.cells) if row.reason else num_parts
    for start in range(0, len(row.cells), num_together):
        cells = row.cells[start : start + num_together]
        if reason := cells[0].reason:
            text = f"-- {marks[reason]}" if reason in marks else escape(reason)
            yield rf"\multicolumn{{{num_together}}}{{c}}{{{text}}}"
        else:
            yield " & ".join(map(_cell, cells))


def _cell(cell: Cell) -> str:
    """Return a cell in LaTeX. The best is bold, and the interval becomes arguments of the macro."""
    latex = escape(cell.text)
    if cell.is_best:
        latex = rf"\textbf{{{latex}}}"
    if cell.interval:
        latex += rf"\specbenchinterval{{{cell.interval.low:.2f}}}{{{cell.interval.high:.2f}}}"
    return latex


def _remarks(report: Report, marks: Marks) -> Iterable[str]:
    """Yield up to two paragraphs below the table, which explain the marks in the table.

    The first has the texts of `marks`, each after its mark, such as "(a) 8 nodes." The second has
    the report's notes about the signs "*" (not lossless) and "~" (significant by its interval, but
    not by the corrected test), and about numbers that are missing for a reason without a mark.
    Warnings are left out, because they are only for the author.
    """
    marked_texts = [f"{mark} {marked_text}." for marked_text, mark in marks.items()]
    notes = []
    for note in report.notes:
        if note.label in ("*", "~"):
            notes.append(f"{note.label}: {note.text}")
        elif note.label == "Missing" and note.numbers.get("reason") not in marks:
            notes.append(note.text)
    for sentences in (marked_texts, notes):
        if sentences:
            yield rf"\par\smallskip\raggedright {escape(' '.join(sentences))}"
