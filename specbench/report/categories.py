"""A run by category of its prompts: MT-bench's eight, or the `category` of a user's own file.

A category is measured as a task is, over its samples. In the table a category is a row and a
method a column.
"""

from __future__ import annotations

from specbench.analysis.cells import CellKey
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.report import formats, sections
from specbench.report.results import TaskResult, ranking_of
from specbench.report.table import Group, Row, Table

BETWEEN = " / "
"""Between a task and a category in the name of what is measured."""


def measure_categories(run: Run, bootstrap: Bootstrap | None = None) -> RunMetrics | None:
    """The numbers of each category, as of a task; None if no task has several."""
    names = {
        sample_id: f"{one.task}{BETWEEN}{category}"
        for one in run.header.prompts
        for category, sample_ids in one.categories.items()
        for sample_id in sample_ids
    }
    return measure(run.of(names), bootstrap) if names else None


def category_tables(info: RunHeader, metrics: RunMetrics) -> tuple[Table, ...]:
    """A table per temperature: a group of rows per task, two columns per method."""
    parts = (sections.SPEEDUP, sections.MAT)
    columns = tuple(
        part.column(info.method(method).label) for method in metrics.methods for part in parts
    )
    tables = []
    for temperature in metrics.temperatures:
        groups: dict[str, list[Row]] = {}
        for name in metrics.tasks:
            task, _, category = name.partition(BETWEEN)
            cells = tuple(
                part.cell(_result(metrics, CellKey(method, temperature, name)))
                for method in metrics.methods
                for part in parts
            )
            groups.setdefault(info.task_title(task), []).append(Row("", category or "none", cells))
        title = f"By category, {formats.temperature(temperature)}"
        made = tuple(Group(label, tuple(rows)) for label, rows in groups.items())
        tables.append(Table(title, columns, made, heading="Category"))
    return tuple(tables)


def _result(metrics: RunMetrics, key: CellKey) -> TaskResult:
    cell = metrics.cells[key]
    p_value = ranking_of(metrics, key.temperature, key.task).against_baseline.get(key.method)
    return TaskResult(cell.speedup, cell.mat, p_value=p_value)
