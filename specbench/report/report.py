"""The value that every format and plot draws: runs with their numbers, measured once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from specbench.analysis.cells import Arithmetic, CellKey
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.ranking import ALONE
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.header import RunHeader
from specbench.log.run import BETWEEN, Run
from specbench.report import formats, sections
from specbench.report.answers import Answers
from specbench.report.results import Results, TaskResult, p_value_of
from specbench.report.table import Group, Row, Table

if TYPE_CHECKING:
    from specbench.report.plots.style import Plot


def measure_categories(
    run: Run, bootstrap: Bootstrap | None = None, arithmetic: Arithmetic = "ours"
) -> RunMetrics | None:
    """The numbers of each category, as of a task; None if no task has several."""
    names = {
        sample_id: f"{one.task}{BETWEEN}{category}"
        for one in run.header.prompts
        for category, sample_ids in one.categories.items()
        for sample_id in sample_ids
    }
    return measure(run.of(names), bootstrap, arithmetic) if names else None


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


@dataclass(frozen=True, slots=True)
class Source:
    """One run of a report. `label` tells it from the others."""

    label: str
    metrics: RunMetrics
    run: Run
    answers: tuple[Answers, ...] = ()

    @property
    def info(self) -> RunHeader:
        return self.metrics.info


@dataclass(frozen=True)
class Report:
    """The runs of a report, their results, and every plot that there is data for."""

    sources: tuple[Source, ...]
    results: Results
    plots: tuple[Plot, ...] = ()

    @cached_property
    def category_metrics(self) -> Sequence[RunMetrics | None]:
        """The numbers of each run by category, if its prompts have any."""
        found = ((one.run, one.metrics) for one in self.sources)
        return [measure_categories(run, own.bootstrap, own.arithmetic) for run, own in found]

    @cached_property
    def categories(self) -> tuple[Table, ...]:
        """The tables of the runs with categories."""
        pairs = zip(self.sources, self.category_metrics, strict=True)
        return tuple(
            table
            if self.results.is_one_run
            else replace(table, title=f"{one.label}: {table.title}")
            for one, metrics in pairs
            if metrics is not None
            for table in category_tables(one.info, metrics)
        )
