"""The files of a report, each written whole or not at all."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from specbench.errors import RunFolderError
from specbench.log.files import write_whole
from specbench.report.export import FORMATS, load_format
from specbench.report.plots.style import Plot
from specbench.report.report import Report


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
    files = {}
    for plot in plots:
        files[f"{plot.name}.svg"] = plot.images.svg
        files[f"{plot.name}.png"] = plot.images.png
    return files


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, which is made if it is missing.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(folder / name, content)
    except OSError as error:
        raise RunFolderError(
            f"The report cannot be written to {folder}: {error.strerror or error}.",
            "Give a folder that can be written to.",
        ) from error
    return [folder / name for name in files]
