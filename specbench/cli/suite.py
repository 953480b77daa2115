"""`specbench suite`: the runs of a recipe, with one report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.interrupts import resumable
from specbench.cli.options import REPORTS, Call, quiet_libraries, takes
from specbench.log.options import options

SUITES = Path("results/suites")
"""Default folder of suites."""


@takes(
    *options(
        Call, "output", "resume", "force", "offline", "dry_run", "ray", "full", "sort", "quiet"
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
    from specbench.report.build import make_report, write_report
    from specbench.report.export.terminal import print_report

    chosen = read_recipe(recipe)
    if call.dry_run:
        from specbench.cli.dry_run import print_dry_run

        print_dry_run(chosen)
        return
    quiet_libraries()
    folder = call.output or SUITES / chosen.name
    view = progress_view(is_quiet=call.quiet)
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
