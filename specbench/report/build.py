"""A report of finished runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specbench.analysis.calibration import Calibration, calibrate
from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.run import Run
from specbench.log.store import read_trace
from specbench.report.answers import pick_answers
from specbench.report.facts import load_text
from specbench.report.plots import make_plots
from specbench.report.report import MethodAt, Report, Source
from specbench.report.results import Sort, build_results, run_labels
from specbench.types import TracedStep


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
    labels = run_labels([one.info for one in measured], [*map(load_text, measured)])
    sources = [
        Source(label, metrics, _calibration(run), run, answers=pick_answers(run))
        for label, run, metrics in zip(labels, several, measured, strict=True)
    ]
    report = Report(tuple(sources), build_results(measured, sort))
    return replace(report, plots=make_plots(report))


def _calibration(run: Run) -> dict[MethodAt, tuple[Calibration, ...]]:
    """The calibration of every method that the run traced, at each temperature."""
    steps: dict[MethodAt, list[TracedStep]] = defaultdict(list)
    for line in read_trace(run.path) if run.path else ():
        steps[line.method, line.temperature] += line.steps
    found = {method_at: calibrate(own) for method_at, own in steps.items()}
    return {method_at: calibrations for method_at, calibrations in found.items() if calibrations}
