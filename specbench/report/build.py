"""A report of finished runs, and its files, each written whole or not at all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.errors import RunFolderError, os_errors
from specbench.log.files import write_whole
from specbench.log.run import Run
from specbench.report.arrange import Sort, arrange
from specbench.report.export import FORMATS, load_format
from specbench.report.plots import make_plots
from specbench.report.plots.style import Plot
from specbench.report.results import Report


def make_report(
    runs: Run | Sequence[Run],
    bootstrap: Bootstrap | None = None,
    sort: Sort = "paper",
    **options: Any,
) -> Report:
    """Measure runs and arrange their numbers, methods in this order. Options are `measure`'s.

    A run on servers at several loads becomes one run per load.
    """
    run_list = runs if isinstance(runs, Sequence) else [runs]
    runs_at_loads = [run.at(load) for run in run_list for load in run.loads]
    measured = [measure(run, bootstrap, **options) for run in runs_at_loads]
    report = arrange(measured, runs_at_loads, sort)
    return replace(report, plots=make_plots(report))


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write every format and every plot.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    return write_files(folder, report_files(report))


def report_files(report: Report) -> dict[str, bytes]:
    """The files of a report by name: the formats, then each plot as SVG and as PNG."""
    files = {
        name: text.encode()
        for form in FORMATS
        for name, text in load_format(form).files(report).items()
    }
    return files | plot_files(report.plots)


def plot_files(plots: Iterable[Plot]) -> dict[str, bytes]:
    """Each plot as SVG and as PNG, by name."""
    return {
        f"{plot.name}.{kind}": content
        for plot in plots
        for kind, content in plot.images._asdict().items()
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, which is made if it is missing.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    hint = "Give a folder that can be written to."
    with os_errors(f"The report cannot be written to {folder}", hint, RunFolderError):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(folder / name, content)
    return [folder / name for name in files]
