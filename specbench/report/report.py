"""The value that every format and plot draws: runs with their numbers, measured once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from specbench.analysis.metrics import RunMetrics
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.report.answers import Answers
from specbench.report.categories import category_tables, measure_categories
from specbench.report.results import Results
from specbench.report.table import Table

if TYPE_CHECKING:
    from specbench.report.plots.style import Plot


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
        return [measure_categories(one.run, one.metrics.bootstrap) for one in self.sources]

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
