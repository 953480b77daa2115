"""`specbench doctor`: check this machine."""

from __future__ import annotations

from typing import Any

import typer

from specbench.cli.options import Call, quiet_libraries, say, takes
from specbench.log.options import options
from specbench.log.spec import SpecValues

MACHINE = ("model", "device", "threads", "weights", "execution", "kernels")


@takes(*options(SpecValues, *MACHINE), *options(Call, "offline"))
def doctor(values: dict[str, Any], call: Call) -> None:
    """Check this machine, and that its baseline is fair."""
    from specbench.measure.preflight import check_names
    from specbench.measure.spec import RunSpec

    spec = RunSpec(**values)
    say(f"Checking this machine with {spec.model} …")
    check_names(spec)
    quiet_libraries()
    from specbench.measure.doctor import examine

    is_sound = True
    for finding in examine(spec, is_offline=call.offline):
        mark = {True: "ok", False: "PROBLEM", None: "note"}[finding.is_ok]
        say(f"{mark:8}{finding.name}: {finding.text}", is_error=False)
        is_sound &= finding.is_ok is not False
    raise typer.Exit(0 if is_sound else 1)
