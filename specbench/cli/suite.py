"""`specbench suite`: the runs of a recipe, with one report."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.interrupts import resumable
from specbench.cli.options import REPORTS, Call, quiet_libraries, takes
from specbench.errors import UserError
from specbench.log.options import options

if TYPE_CHECKING:
    from specbench.measure.suite.recipe import Suite

SUITES = Path("results/suites")
"""Default folder of suites."""


@takes(
    *options(
        Call,
        "output",
        "resume",
        "force",
        "offline",
        "dry_run",
        "ray",
        "full",
        "sort",
        "log_json",
        "quiet",
    )
)
def suite(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE.toml", help="The runs: see docs/suites.md.")
    ],
    call: Call,
) -> None:
    """Measure all runs of a recipe; keep them and one report."""
    from specbench.cli.progress import progress_view
    from specbench.measure.plan import setup_maker
    from specbench.measure.suite.recipe import read_recipe
    from specbench.measure.suite.runs import run_suite
    from specbench.report.build import make_report
    from specbench.report.export.terminal import print_report
    from specbench.report.files import write_report

    chosen = read_recipe(recipe)
    if call.dry_run:
        _preview(chosen)
        return
    quiet_libraries()
    folder = call.output or SUITES / chosen.name
    view = progress_view(is_quiet=call.quiet, is_json=call.log_json)
    words = sys.argv[1:]
    with resumable(folder, "--output", words), setup_maker(call.ray) as maker, view:
        result = run_suite(
            chosen,
            folder,
            view,
            command=words,
            is_resumed=call.resume,
            is_forced=call.force,
            is_offline=call.offline,
            setup_maker=maker,
        )
    if result.runs:
        report = make_report(result.runs, sort=call.sort)
        print_report(report, is_full=call.full)
        place = call.output / "report" if call.output else REPORTS / chosen.name
        write_report(report, place)
        view.saved(folder, place)
    for name, reason in result.failures.items():
        view.message(f"Failed: {name}: {reason}")
    records = [record for run in result.runs for record in run.records]
    raise typer.Exit(1 if result.failures or not all(record.is_ok for record in records) else 0)


def _preview(chosen: Suite) -> None:
    """Print what each run would take."""
    import torch

    from specbench.machine.bandwidth import bandwidth
    from specbench.measure.suite.preview import preview
    from specbench.report.console import SafeConsole, text_table

    bytes_per_s = cache(lambda device: bandwidth(torch.device(device)))
    rows, missing, refused = [], list[str](), list[str]()
    for run in chosen.runs:
        try:
            one = preview(run, bytes_per_s)
        except UserError as error:
            refused.append(f"{run.name}: {error.message} {error.hint}")
            continue
        missing += [f"{run.name}: {sentence}" for sentence in one.missing]
        rows.append(
            [
                run.name,
                str(one.num_methods),
                _number(one.num_samples, "{:,.0f}"),
                _number(one.download_bytes, "{:.1f} GB", 1e9) + " + ?" * one.has_more_files,
                _number(one.memory_bytes, "{:.1f} GB", 1e9),
                _time(one.max_seconds),
            ]
        )
    headings = ["run", "methods", "answers", "download", "memory", "at most"]
    note = (
        "At most: every method at the speed of a baseline that waits for memory alone, every "
        "answer of full length. ?: unknown."
    )
    table = text_table(headings, rows, are_numbers=True)
    SafeConsole().print(chosen.title, table, *missing, *refused, note, sep="\n")
    if refused:
        raise typer.Exit(UserError.exit_code)


def _number(value: float | None, shown: str, unit: float = 1) -> str:
    return "?" if value is None else shown.format(value / unit)


def _time(seconds: float | None) -> str:
    if seconds is None or seconds >= 3600:
        return _number(seconds, "{:,.1f} h", 3600)
    return _number(seconds, "{:.1f} min", 60) if seconds >= 60 else f"{seconds:.0f} s"
