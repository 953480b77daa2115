"""What a report is made from: runs with their numbers, measured once for all renderings."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from specbench.analysis.calibration import Calibration, calibrate
from specbench.analysis.divergence import Agreement
from specbench.analysis.header import RunInfo
from specbench.analysis.metrics import Run, RunMetrics, measure
from specbench.analysis.stats import Bootstrap
from specbench.bench.store import TRACE
from specbench.report.table import Table, build_table, run_labels

Place: TypeAlias = tuple[str, float]
"""A method and a temperature."""


@dataclass(frozen=True, slots=True)
class Source:
    """A run as reports see it. `label` is its name among the runs of the report."""

    label: str
    header: Mapping[str, Any]
    metrics: RunMetrics
    agreements: Mapping[str, Agreement]
    calibration: Mapping[Place, tuple[Calibration, ...]]

    @property
    def info(self) -> RunInfo:
        return self.metrics.info


@dataclass(frozen=True, slots=True)
class Report:
    """The runs of one report, and their table."""

    sources: tuple[Source, ...]
    table: Table


def make_report(
    runs: Run | Sequence[Run],
    bootstrap: Bootstrap | None = None,
    **options: Any,
) -> Report:
    """Everything that any rendering of these runs shows. Options are those of `measure`."""
    several = runs if isinstance(runs, Sequence) else [runs]
    measured = [measure(run, bootstrap, **options) for run in several]
    labels = run_labels([metrics.info for metrics in measured])
    sources = [
        Source(label, run.header, metrics, metrics.agreements, _calibration(run))
        for label, run, metrics in zip(labels, several, measured, strict=True)
    ]
    return Report(tuple(sources), build_table(measured))


def _calibration(run: Run) -> dict[Place, tuple[Calibration, ...]]:
    """The calibration of every method that the run traced, at each temperature."""
    folder = getattr(run, "path", None)
    steps: dict[Place, list[Mapping[str, Any]]] = defaultdict(list)
    for line in _trace(folder / TRACE) if isinstance(folder, Path) else ():
        steps[line["method"], float(line["temperature"])] += line["steps"]
    found = {place: calibrate(own) for place, own in steps.items()}
    return {place: calibrations for place, calibrations in found.items() if calibrations}


def _trace(path: Path) -> Iterator[Mapping[str, Any]]:
    """The whole lines of a trace; the last may have been cut short by a kill."""
    if not path.exists():
        return
    with path.open("rb") as file:
        yield from (json.loads(line) for line in file if line.endswith(b"\n"))
