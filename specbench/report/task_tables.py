"""Make the papers' table of methods by task, and the same table by category."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specbench.analysis.cells import CellKey
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.ranking import ALONE, is_claimed
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.log.run import BETWEEN
from specbench.report import formats
from specbench.report.results import (
    MEAN,
    MEAN_TITLE,
    Block,
    MethodResults,
    Report,
    Source,
    TaskResult,
    task_result,
)
from specbench.report.table import Cell, Column, Group, Row, Table, Tone

_MARKED = "significant on its own, but not after correcting for all methods in the row"
"""The meaning of the mark "~" in a table by category."""


@dataclass(frozen=True, slots=True)
class Part:
    """A number of a task, with a column below the task's title."""

    heading: str
    """The column's heading."""
    cell: Callable[[TaskResult], Cell]
    """Makes a method's cell from its result on the task."""
    short: str = ""
    """The heading if there is little room, or "" to use `heading`."""

    def column(self, task: str) -> Column:
        return Column(self.heading, task, short=self.short)


def tone(result: TaskResult) -> Tone:
    """Return the claim about the speedup of a method on a task, which gives its colour.

    It is "good" or "bad" if the speedup is significantly above or below 1, after correction for all
    methods of the task. It is "unsure" if the speedup is not significantly different from 1. It is
    "" if the speedup has no interval or was not tested, as in a single pass. It is "missing" if
    there is no speedup.
    """
    speedup = result.speedup
    if not isinstance(speedup, Estimate):
        return "missing"
    # `p_value` is the corrected p-value of "as fast as vanilla", or None if this was not tested.
    if formats.interval_of(speedup) is None or result.p_value is None:
        return ""
    if not is_claimed(result.p_value):
        return "unsure"
    return "good" if speedup.value > 1.0 else "bad"


def _speedup(spread: Callable[[Value], str]) -> Callable[[TaskResult], Cell]:
    """Return a function that makes cells with a speedup and its interval, which `spread` writes."""

    def cell(task: TaskResult) -> Cell:
        return Cell(
            formats.speedup(task.speedup) + task.mark + spread(task.speedup),
            tone(task),
            is_best=task.is_best_speedup,
            interval=formats.interval_of(task.speedup),
            reason=task.reason,
        )

    return cell


def _no_spread(speedup: Value) -> str:
    return ""


def _plus_minus_or_unknown(speedup: Value) -> str:
    return " ±?" if formats.no_interval(speedup) else formats.plus_minus(speedup)


def _mat(task: TaskResult) -> Cell:
    return Cell(formats.mat(task.mat), is_best=task.is_best_mat, reason=task.reason)


SPEEDUP = Part("speedup", _speedup(_no_spread), short="speed")
"""Only the speedup."""
PLUS_MINUS = Part("speedup", _speedup(formats.plus_minus), short="speed")
"""The speedup ± half the width of its interval."""
OR_UNKNOWN = Part("speedup", _speedup(_plus_minus_or_unknown), short="speed")
"""The speedup ± half the width of its interval. " ±?" stands for a missing interval."""
MAT = Part("MAT", _mat)
"""The mean accepted tokens."""


def on_screen(report: Report, block: Block) -> Part:
    """Return the speedup with its interval for a terminal.

    Missing intervals are marked if any task has an interval. If none has one, a note says so
    instead.
    """
    has_interval = any(
        formats.interval_of(result.speedup)
        for method in block.methods
        for task, result in zip(report.tasks, method.tasks, strict=True)
        if task.name != MEAN
    )
    return OR_UNKNOWN if has_interval else PLUS_MINUS


def by_task(report: Report, block: Block, parts: Sequence[Part] = (SPEEDUP, MAT)) -> Table:
    """Return the papers' table, with the numbers `parts` of each method on each task."""
    columns = [part.column(task.head) for task in report.tasks for part in parts]

    def cells(method: MethodResults) -> list[Cell]:
        return [part.cell(task) for task in method.tasks for part in parts]

    return Table("", tuple(columns), groups(report, block, cells))


def mean_first(report: Report, block: Block) -> Table:
    """Return the papers' table with the mean over the tasks as its first columns."""
    table = by_task(report, block)
    mean_columns = [i for i, column in enumerate(table.columns) if column.task == MEAN_TITLE]
    task_columns = [i for i, column in enumerate(table.columns) if column.task != MEAN_TITLE]
    return table.take([*mean_columns, *task_columns])


def by_category(report: Report) -> list[Table]:
    """Return the tables by category of all runs whose prompts have categories."""
    return [
        table
        for source in report.sources
        if source.categories  # None if no task has several categories
        for table in category_tables(report, source, source.categories)
    ]


def category_tables(report: Report, source: Source, categories: RunMetrics) -> Iterable[Table]:
    """Yield a table for each temperature of a run, with a group per task and a row per category.

    Each method has two columns, its speedup and its MAT. `categories` are the metrics of the run
    with "task / category" in place of each task. If there are several runs, titles begin with the
    name of the run.
    """
    header = source.info
    parts = (SPEEDUP, MAT)  # a part makes a column and its cells
    methods = [method for method in report.methods_of(source) if method in categories.methods]
    labels = [header.method(method).label for method in methods]
    # The labels of methods take the place that titles of tasks have in other tables.
    columns = tuple(part.column(label) for label in labels for part in parts)
    for temperature in categories.temperatures:
        rows_by_task: dict[str, list[Row]] = defaultdict(list)  # by the title of the task
        has_mark = False  # True if a speedup is significant only before correction
        for task_and_category in categories.tasks:
            task, _, category = task_and_category.partition(BETWEEN)  # " / "
            keys = [CellKey(method, temperature, task_and_category) for method in methods]
            results = [task_result(categories, key) for key in keys]  # speedup and MAT
            has_mark |= any(result.mark for result in results)  # "~" or ""
            cells = tuple(part.cell(result) for result in results for part in parts)
            # The method is "", because the row is for a category.
            row = Row("", category or "none", cells)
            rows_by_task[header.task_title(task)].append(row)
        run_name = "" if report.is_one_run else f"{source.label}: "
        title = f"{run_name}By category, {formats.temperature(temperature)}"
        if has_mark:
            title += f" ({ALONE}: {_MARKED})"  # the mark and its meaning
        row_groups = tuple(
            Group(task_title, tuple(rows)) for task_title, rows in rows_by_task.items()
        )
        yield Table(title, columns, row_groups, heading="Category")


def groups(
    report: Report, block: Block, cells: Callable[[MethodResults], list[Cell]]
) -> tuple[Group, ...]:
    """Return a group for each run, with a row for each method. `cells` makes the cells of a row.

    Runs without rows are left out.
    """
    row_groups = []
    for run in block.runs:
        rows = tuple(_row(method, cells(method)) for method in run.methods)
        if rows:
            label = "" if report.is_one_run else run.source.label
            row_groups.append(Group(label, rows))
    return tuple(row_groups)


def _row(method: MethodResults, cells: Sequence[Cell]) -> Row:
    has_failed = method.overall.pooled.num_failed > 0
    return Row(method.method, method.label, tuple(cells), has_failed=has_failed)
