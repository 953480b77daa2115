"""`specbench check`: a run against its baseline, for continuous integration; or its files alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import complete
from specbench.cli.options import RunArguments, write_data
from specbench.log.state import run_folder

Leaderboard = Annotated[
    bool,
    typer.Option(
        "--leaderboard", help="Fail for a run that may not enter the leaderboard; no baseline."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON document.")]


def check(
    run: RunArguments,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="The run to check against; several, as in --baseline A B C, show how far runs "
            "differ [default: check the files alone]",
            callback=lambda paths: [run_folder(path) for path in paths or ()],
            autocompletion=complete.runs,
        ),
    ] = None,
    max_slowdown: Annotated[
        str, typer.Option(metavar="SHARE", help="Largest rise of a method's time per token.")
    ] = "5%",
    max_mat_drop: Annotated[
        str, typer.Option(metavar="SHARE", help="Largest drop of a method's mean accepted tokens.")
    ] = "2%",
    max_mat_rise: Annotated[
        str, typer.Option(metavar="SHARE", help="Largest rise of a method's mean accepted tokens.")
    ] = "2%",
    max_mismatch: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Largest share of a method's greedy answers that may stop being equal to vanilla's"
            " [default: 0 in float32, else what chance explains]",
        ),
    ] = None,
    speed: Annotated[
        str,
        typer.Option(
            metavar="WHEN", help="When to check speed: matching (same machine), always or never."
        ),
    ] = "matching",
    leaderboard: Leaderboard = False,
    json: Json = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML file.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print GitHub annotations [default: on GitHub Actions]")
    ] = False,
) -> None:
    """Fail if a run is slower or accepts less than its baseline runs, or has damaged files.

    Without --baseline, only the files of the runs are checked: schema, hashes, counts, times.
    """
    from specbench.errors import UserError
    from specbench.judge.files import check_files
    from specbench.judge.gate import check as check_run
    from specbench.judge.limits import parse_limits
    from specbench.judge.printer import print_checks, to_annotations, to_json, write_junit
    from specbench.log.store import read_run

    limits = parse_limits(
        max_slowdown, max_mat_drop, max_mismatch, speed=speed, max_mat_rise=max_mat_rise
    )
    kind = "specbench check" if baseline else "specbench verification"
    if not baseline:
        checked = [check_files(path, for_leaderboard=leaderboard) for path in run]
    elif leaderboard:
        raise UserError("--leaderboard checks files alone.", "Leave out --baseline.")
    else:
        first, *others = run
        baselines = [read_run(path) for path in (*baseline, *others)]
        checked = [check_run(read_run(first), baselines[0], limits, more=baselines[1:])]
    if json:
        write_data(to_json(checked, kind))
    else:
        print_checks(checked)
        if github or os.environ.get("GITHUB_ACTIONS") == "true":
            typer.echo("\n".join(to_annotations(checked)))
    if junit is not None:
        write_junit(checked, junit)
    raise typer.Exit(0 if all(one.is_passed for one in checked) else 1)
