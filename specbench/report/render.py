"""Runs -> a printed report, and the files of one.

Knows which renderings there are and what their files are called.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from specbench.analysis.metrics import Run, RunMetrics, measure
from specbench.analysis.stats import Bootstrap
from specbench.errors import RunFolderError
from specbench.report.markdown import to_markdown
from specbench.report.plots import MAT, SPEEDUP, bar_chart
from specbench.report.table import build_table
from specbench.report.terminal import print_table, report_console
from specbench.report.tidy import to_csv, to_positions_csv

Runs: TypeAlias = Run | RunMetrics | Sequence[Run | RunMetrics]
"""What is rendered: runs, or, where several renderings follow, their measured numbers."""


def print_report(
    runs: Runs, console: Console | None = None, bootstrap: Bootstrap | None = None
) -> None:
    """The table of the runs, on stdout unless a console is given."""
    print_table(build_table(_measure(runs, bootstrap)), console or report_console())


def write_report(runs: Runs, out_dir: Path, bootstrap: Bootstrap | None = None) -> list[Path]:
    """Tables, CSV files and charts in `out_dir`; each file is whole or not there.

    Raises `RunFolderError` where the folder cannot be written.
    """
    measured = _measure(runs, bootstrap)
    table = build_table(measured)
    files = {
        "table.md": to_markdown(table).encode(),
        "table.csv": to_csv(measured).encode(),
        "positions.csv": to_positions_csv(measured).encode(),
        "speedup.png": bar_chart(table, SPEEDUP),
        "mat.png": bar_chart(table, MAT),
    }
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


def render_markdown(runs: Runs, bootstrap: Bootstrap | None = None) -> str:
    """The text of table.md."""
    return to_markdown(build_table(_measure(runs, bootstrap)))


def render_csv(runs: Runs, bootstrap: Bootstrap | None = None) -> str:
    """The text of table.csv."""
    return to_csv(_measure(runs, bootstrap))


def _measure(runs: Runs, bootstrap: Bootstrap | None) -> list[RunMetrics]:
    several = runs if isinstance(runs, Sequence) else [runs]
    return [run if isinstance(run, RunMetrics) else measure(run, bootstrap) for run in several]


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
