"""Runs -> a printed report, one rendering of it, or the files of all.

Knows which renderings there are and what their files are called.
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from specbench.analysis.metrics import Run
from specbench.errors import RunFolderError, unknown_name
from specbench.report.json import to_json
from specbench.report.latex import to_latex, to_standalone
from specbench.report.markdown import to_markdown
from specbench.report.plots import Plot, plots, to_png, to_svg
from specbench.report.source import Report, make_report
from specbench.report.terminal import print_table, report_console
from specbench.report.tidy import to_csv, to_positions_csv

Runs: TypeAlias = Report | Run | Sequence[Run]
"""What is rendered: runs, or, where several renderings follow, the report made of them."""

_RENDERINGS: Mapping[str, Callable[[Report], str]] = {
    "markdown": lambda report: to_markdown(report.table),
    "latex": lambda report: to_latex(report.table),
    "csv": lambda report: to_csv([source.metrics for source in report.sources]),
    "json": to_json,
}
FORMATS = ("table", *_RENDERINGS)


def check_format(name: str) -> str:
    """The name of a rendering. Raises `UserError` where there is none of that name."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return name


def render(runs: Runs, form: str) -> str:
    """The text of one of the renderings but the terminal's."""
    return _RENDERINGS[form](_report(runs))


def print_report(runs: Runs, console: Console | None = None) -> None:
    """The table of the runs, on stdout unless a console is given."""
    print_table(_report(runs).table, console or report_console())


def write_report(runs: Runs, out_dir: Path) -> list[Path]:
    """Every rendering and every plot in `out_dir`; each file is whole or not there.

    Raises `RunFolderError` where the folder cannot be written.
    """
    report = _report(runs)
    pictures = plots(report)
    files = {
        "table.md": (to_markdown(report.table) + _gallery(pictures)).encode(),
        "table.csv": render(report, "csv").encode(),
        "positions.csv": to_positions_csv([source.metrics for source in report.sources]).encode(),
        "table.tex": render(report, "latex").encode(),
        "table_standalone.tex": to_standalone(report.table).encode(),
        "report.json": render(report, "json").encode(),
    }
    for plot in pictures:
        drawn = plot.draw()
        files |= {f"{plot.name}.png": to_png(drawn), f"{plot.name}.svg": to_svg(drawn)}
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            _write_whole(out_dir / name, content)
    except OSError as error:
        raise RunFolderError(
            f"The report cannot be written to {out_dir}: {error.strerror or error}.",
            "Give a folder that can be written to.",
        ) from error
    return [out_dir / name for name in files]


def _report(runs: Runs) -> Report:
    return runs if isinstance(runs, Report) else make_report(runs)


def _gallery(pictures: Sequence[Plot]) -> str:
    """The plots below the table, in Markdown."""
    return "".join(
        f"\n## {plot.title}\n\n![{plot.title}]({plot.name}.svg)\n\n{plot.caption}\n"
        for plot in pictures
    )


def _write_whole(path: Path, content: bytes) -> None:
    """Written beside its place and then moved there, so that no reader sees a half."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
