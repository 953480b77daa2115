"""Make a report of finished runs and write its files, each of them whole or not at all."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.errors import RunFolderError, os_errors, same_name, unknown_name
from specbench.log.files import write_whole
from specbench.log.run import Run
from specbench.report.arrange import Sort, arrange
from specbench.report.export import FORMATS, load_format
from specbench.report.plots import make_plots
from specbench.report.plots.style import Plot
from specbench.report.results import COLUMNS, Report


def make_report(
    runs: Run | Sequence[Run],
    bootstrap: Bootstrap | None = None,
    sort: Sort = "paper",
    **options: Any,
) -> Report:
    """Measure the runs and make their report, with the methods sorted by `sort`.

    `options` are further arguments of `measure`. A run on servers at several loads becomes a run
    for each load.
    """
    run_list = runs if isinstance(runs, Sequence) else [runs]
    runs_at_loads = [run.at(load) for run in run_list for load in run.loads]
    measured = [measure(run, bootstrap, **options) for run in runs_at_loads]
    report = arrange(measured, runs_at_loads, sort)
    return replace(report, plots=make_plots(report))


def write_report(report: Report, folder: Path, *, has_pdf: bool = False) -> list[Path]:
    """Write the report in every format, and its plots. With `has_pdf`, write the plots as PDF too.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    files = report_files(report)
    if has_pdf:
        files |= {f"{plot.name}.pdf": plot.pdf for plot in report.plots}
    return write_files(folder, files)


def report_files(report: Report) -> dict[str, bytes]:
    """Return the files of a report by name: all formats, then each plot as SVG and PNG."""
    files = {
        name: text.encode()
        for form in FORMATS
        for name, text in load_format(form).files(report).items()
    }
    return files | plot_files(report.plots)


def plot_files(plots: Iterable[Plot]) -> dict[str, bytes]:
    """Return each plot as SVG and PNG, by file name."""
    return {
        f"{plot.name}.{kind}": content
        for plot in plots
        for kind, content in plot.images._asdict().items()
    }


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the columns that a text such as "speedup,mean" names, or all columns for "".

    Raises:
        UserError: a name is unknown.
    """
    names = tuple(text.split(",")) if text else COLUMNS
    for name in names:
        if name not in COLUMNS:
            raise unknown_name("column", name, COLUMNS)
    return names


def for_paper(report: Report, columns: tuple[str, ...], ours: Iterable[str]) -> Report:
    """Return the report with these columns in its LaTeX table, and the author's methods marked.

    The table has a row for each variant of a method. A variant is a method with its options, such
    as "pld:ngram=2", and "pld" is the name without options.

    Args:
        report: the report of the runs.
        columns: some of `COLUMNS`.
        ours: the author's methods. They are spellings of variants, or names without options, which
            stand for all variants. Case, hyphens, underscores and blanks do not matter.

    Raises:
        UserError: the runs have no such method.
    """
    # A name without options stands for all its variants, a spelling with options only for itself.
    spellings_by_name: dict[str, set[str]] = defaultdict(set)
    for block in report.blocks:  # the results at one temperature
        for method in block.methods:
            spelling = method.method
            spellings_by_name[spelling].add(spelling)
            spellings_by_name[spelling.partition(":")[0]].add(spelling)
    our_spellings: set[str] = set()
    for our_method in ours:
        # the key that differs only in case and separators, or else `our_method` itself
        name = same_name(our_method, spellings_by_name)
        if name not in spellings_by_name:
            raise unknown_name("method in these runs", name, spellings_by_name)
        our_spellings |= spellings_by_name[name]
    return replace(report, columns=columns, ours=tuple(our_spellings))


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write the files into a folder, and make the folder if it does not exist.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    hint = "Give a folder that can be written to."
    with os_errors(f"The report cannot be written to {folder}", hint, RunFolderError):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(folder / name, content)
    return [folder / name for name in files]
