"""`specbench doctor`: check this machine."""

from typing import Any

import typer

from specbench.cli.options import Call, quiet_libraries, say, takes
from specbench.log.options import options
from specbench.log.spec import SpecValues

MACHINE = ("model", "device", "threads", "weights", "execution", "kernels")


@takes(*options(SpecValues, *MACHINE), *options(Call, "offline"))
def doctor(values: dict[str, Any], call: Call) -> None:
    """Check this machine, and whether its baseline is fair."""
    from specbench.measure.spec import RunSpec

    spec = RunSpec(**values)
    say(f"Checking this machine with {spec.model} …")
    from specbench.measure.plan import check_early

    check_early(spec)
    quiet_libraries()
    from specbench.measure.doctor import examine
    from specbench.report.console import Prose, SafeConsole

    console = SafeConsole()
    num_problems = 0
    for finding in examine(spec, is_offline=call.offline):
        mark = {True: "ok", False: "PROBLEM", None: "note"}[finding.is_ok]
        line = Prose(f"{finding.name}: {finding.text}", label=mark, indent=8)
        console.print(line, crop=False)
        if finding.is_ok is False:
            num_problems += 1
    say("Not ready: fix each PROBLEM above." if num_problems else "Ready.", is_error=False)
    raise typer.Exit(1 if num_problems else 0)
