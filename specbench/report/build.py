"""A report of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.run import Run
from specbench.report.answers import pick_answers
from specbench.report.facts import load_text
from specbench.report.plots import make_plots
from specbench.report.report import Report, Source
from specbench.report.results import Sort, build_results, run_labels


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
        Source(label, metrics, run, answers=pick_answers(run))
        for label, run, metrics in zip(labels, several, measured, strict=True)
    ]
    report = Report(tuple(sources), build_results(measured, sort))
    return replace(report, plots=make_plots(report))
