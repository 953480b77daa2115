"""The value that every format and plot draws: runs with their numbers, measured once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from specbench.analysis.cells import CellKey
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.ranking import ALONE
from specbench.log.header import RunHeader
from specbench.log.run import BETWEEN, Run
from specbench.report import formats, sections
from specbench.report.answers import Answers, pick_answers
from specbench.report.results import Results, TaskResult, p_value_of
from specbench.report.table import Group, Row, Table

if TYPE_CHECKING:
    from specbench.report.plots.style import Plot


def category_tables(info: RunHeader, metrics: RunMetrics) -> tuple[Table, ...]:
    """A table per temperature: a group of rows per task, two columns per method."""
    parts = (sections.SPEEDUP, sections.MAT)
    columns = tuple(
        part.column(info.method(method).label) for method in metrics.methods for part in parts
    )
    tables = []
    for temperature in metrics.temperatures:
        groups: dict[str, list[Row]] = {}
        legend = ""
        for name in metrics.tasks:
            task, _, category = name.partition(BETWEEN)
            keys = (CellKey(method, temperature, name) for method in metrics.methods)
            results = [_result(metrics, key) for key in keys]
            if any(one.mark for one in results):
                legend = f" ({ALONE}: alone a difference, not among the methods of a row)"
            cells = tuple(part.cell(one) for one in results for part in parts)
            groups.setdefault(info.task_title(task), []).append(Row("", category or "none", cells))
        title = f"By category, {formats.temperature(temperature)}{legend}"
        made = tuple(Group(label, tuple(rows)) for label, rows in groups.items())
        tables.append(Table(title, columns, made, heading="Category"))
    return tuple(tables)


def _result(metrics: RunMetrics, key: CellKey) -> TaskResult:
    cell = metrics.cells[key]
    return TaskResult(cell.speedup, cell.mat, p_value=p_value_of(metrics, key))


@dataclass(frozen=True)
class Source:
    """One run of a report. `label` tells it from the others."""

    label: str
    metrics: RunMetrics
    run: Run

    @property
    def info(self) -> RunHeader:
        return self.metrics.info

    @cached_property
    def answers(self) -> tuple[Answers, ...]:
        """The answers that a page shows."""
        return pick_answers(self.run)

    @cached_property
    def categories(self) -> RunMetrics | None:
        """The numbers of each category, as of a task; None if no task has several."""
        names = {
            sample_id: f"{one.task}{BETWEEN}{category}"
            for one in self.info.prompts
            for category, sample_ids in one.categories.items()
            for sample_id in sample_ids
        }
        own = self.metrics
        return measure(self.run.of(names), own.bootstrap, own.arithmetic) if names else None


@dataclass(frozen=True)
class Report:
    """The runs of a report, their results, and every plot that there is data for."""

    sources: tuple[Source, ...]
    results: Results
    plots: tuple[Plot, ...] = ()

    @cached_property
    def categories(self) -> tuple[Table, ...]:
        """The tables of the runs with categories."""
        return tuple(
            table
            if self.results.is_one_run
            else replace(table, title=f"{one.label}: {table.title}")
            for one in self.sources
            if one.categories is not None
            for table in category_tables(one.info, one.categories)
        )
