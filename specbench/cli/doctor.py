"""`specbench doctor`: check this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli import complete
from specbench.cli.options import (
    Device,
    Offline,
    Threads,
    Weights,
    num_threads,
    quiet_libraries,
    say,
)


def doctor(
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL", help="The model to check with.", autocompletion=complete.models
        ),
    ] = "tiny",
    device: Device = "auto",
    threads: Threads = "auto",
    weights: Weights = "hub",
    offline: Offline = False,
) -> None:
    """Check this machine, and that its baseline is fair."""
    from specbench.measure.doctor import examine

    quiet_libraries()
    is_sound = True
    for finding in examine(
        model, device, weights, threads=num_threads(threads), is_offline=offline
    ):
        mark = {True: "ok", False: "PROBLEM", None: "note"}[finding.is_ok]
        say(f"{mark:8}{finding.name}: {finding.text}", is_error=False)
        is_sound &= finding.is_ok is not False
    raise typer.Exit(0 if is_sound else 1)
