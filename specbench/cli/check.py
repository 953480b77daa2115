"""`specbench check`: the gate for continuous integration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import complete
from specbench.cli.options import RunArguments
from specbench.log.state import run_folder


def check(
    run: RunArguments,
    baseline: Annotated[
        list[Path],
        typer.Option(
            metavar="RUN",
            help="The run to check against; several, as in --baseline A B C, show how far runs "
            "differ.",
            callback=lambda paths: [run_folder(path) for path in paths],
            autocompletion=complete.runs,
        ),
    ],
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
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML file.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print GitHub annotations [default: on GitHub Actions]")
    ] = False,
) -> None:
    """Fail if a run is slower or accepts less than its baseline runs."""
    from specbench.judge.annotations import annotations
    from specbench.judge.gate import check as check_run
    from specbench.judge.junit import write_junit
    from specbench.judge.limits import parse_limits
    from specbench.judge.printer import print_gate
    from specbench.log.store import read_run

    limits = parse_limits(
        max_slowdown, max_mat_drop, max_mismatch, speed=speed, max_mat_rise=max_mat_rise
    )
    checked, *others = run
    baselines = [read_run(path) for path in (*baseline, *others)]
    gate = check_run(read_run(checked), baselines[0], limits, more=baselines[1:])
    print_gate(gate)
    if github or os.environ.get("GITHUB_ACTIONS") == "true":
        for line in annotations(gate):
            typer.echo(line)
    if junit is not None:
        write_junit(gate, junit)
    raise typer.Exit(0 if gate.is_passed else 1)
