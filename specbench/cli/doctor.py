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
    from specbench.measure.doctor import examine
    from specbench.measure.spec import RunSpec

    quiet_libraries()
    is_sound = True
    for finding in examine(RunSpec(**values), is_offline=call.offline):
        mark = {True: "ok", False: "PROBLEM", None: "note"}[finding.is_ok]
        say(f"{mark:8}{finding.name}: {finding.text}", is_error=False)
        is_sound &= finding.is_ok is not False
    raise typer.Exit(0 if is_sound else 1)
