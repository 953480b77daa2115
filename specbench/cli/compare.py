"""`specbench compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import RunArguments, say, write_data


def compare(
    run: RunArguments,
    cross: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="METHOD METHOD", help="Compare a method of the first run with one of another."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs of different work; the table says so.")
    ] = False,
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="table, markdown, csv or json.")
    ] = "table",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for all formats.")] = None,
) -> None:
    """Compare runs, versions or GPUs on the samples that they share.

    The first run is the reference. A folder of several runs, as of `run --runs`, is one side.
    """
    from specbench.judge.comparison import compare_runs
    from specbench.judge.comparison_formats import (
        check_format,
        print_comparison,
        render_comparison,
        write_comparison,
    )
    from specbench.log.store import read_runs

    check_format(format)
    comparisons = compare_runs([read_runs(path) for path in run], cross, is_forced=force)
    if format == "table":
        print_comparison(comparisons)
    else:
        write_data(render_comparison(comparisons, format))
    if out is not None:
        for path in write_comparison(comparisons, out):
            say(str(path))
