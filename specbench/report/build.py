"""The value of a report: runs with their numbers, measured once for all formats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from specbench.analysis.calibration import Calibration, calibrate
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.log.store import read_trace
from specbench.report.answers import Answers, pick_answers
from specbench.report.categories import category_tables, measure_categories
from specbench.report.results import Results, Sort, build_results, run_labels
from specbench.report.table import Table
from specbench.types import TracedStep

if TYPE_CHECKING:
    from specbench.report.plots.style import Plot

MethodAt: TypeAlias = tuple[str, float]
"""A method and a temperature."""


@dataclass(frozen=True, slots=True)
class Source:
    """One run of a report. `label` tells it from the others."""

    label: str
    metrics: RunMetrics
    calibration: Mapping[MethodAt, tuple[Calibration, ...]]
    run: Run
    answers: tuple[Answers, ...] = ()

    @property
    def info(self) -> RunHeader:
        return self.metrics.info


@dataclass(frozen=True)
class Report:
    """The runs of a report and their results."""

    sources: tuple[Source, ...]
    results: Results

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

    @cached_property
    def plots(self) -> tuple[Plot, ...]:
        """Every plot that there is data for."""
        from specbench.report.plots import make_plots

        return make_plots(self)

    @cached_property
    def pictures(self) -> Mapping[str, bytes]:
        """The SVG of each plot by the plot's name, drawn at first use."""
        from specbench.report.plots.style import to_svg

        return {plot.name: to_svg(plot.draw()) for plot in self.plots}


def make_report(
    runs: Run | Sequence[Run],
    bootstrap: Bootstrap | None = None,
    sort: Sort = "paper",
    **options: Any,
) -> Report:
    """Measure runs and arrange their numbers, methods in this order. Options are `measure`'s.

    A run on servers at several loads becomes one run a load.
    """
    given = runs if isinstance(runs, Sequence) else [runs]
    several = [run.at(load) for run in given for load in run.loads]
    measured = [measure(run, bootstrap, **options) for run in several]
    labels = run_labels([metrics.info for metrics in measured])
    sources = [
        Source(label, metrics, _calibration(run), run, answers=pick_answers(run))
        for label, run, metrics in zip(labels, several, measured, strict=True)
    ]
    return Report(tuple(sources), build_results(measured, sort))


def _calibration(run: Run) -> dict[MethodAt, tuple[Calibration, ...]]:
    """The calibration of every method that the run traced, at each temperature."""
    steps: dict[MethodAt, list[TracedStep]] = defaultdict(list)
    for line in read_trace(run.path) if run.path else ():
        steps[line.method, line.temperature] += line.steps
    found = {method_at: calibrate(own) for method_at, own in steps.items()}
    return {method_at: calibrations for method_at, calibrations in found.items() if calibrations}
