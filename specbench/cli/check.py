"""`specbench check`: a run against its baseline, for continuous integration; or its files alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.options import RunArguments, complete_runs, takes, write_data
from specbench.errors import UserError
from specbench.judge.limits import Limits
from specbench.log.folders import run_folder, single_runs
from specbench.log.options import options
from specbench.log.store import read_run


def _baseline(text: str) -> Path:
    if not text:
        raise UserError("--baseline is empty.", "Give the folder of a run.")
    return run_folder(Path(text))


@takes(*options(Limits))
def check(
    run: RunArguments,
    values: Mapping[str, Any],
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="The run to check against; several, as in --baseline A B C, show how far runs "
            "differ [default: check the files alone]",
            parser=_baseline,
            autocompletion=complete_runs,
        ),
    ] = None,
    leaderboard: Annotated[
        bool,
        typer.Option(
            "--leaderboard", help="Fail for a run that may not enter the leaderboard; no baseline."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML file.")
    ] = None,
) -> None:
    """Fail if a run is slower or accepts less than its baseline runs, or has damaged files.

    Without --baseline, only the files of the runs are checked: schema, hashes, counts, times.
    """
    from specbench.judge.files import check_files
    from specbench.judge.gate import check as check_run
    from specbench.judge.printer import print_checks, to_json, write_junit

    limits, kind = Limits(**values), "specbench check"
    if not baseline:
        for name in values:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} is a limit on a change.", "Give the --baseline too.")
        kind = "specbench verification"
        checked = [check_files(path, for_leaderboard=leaderboard) for path in single_runs(run)]
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
    if junit is not None:
        write_junit(checked, junit)
    raise typer.Exit(max(one.exit_code for one in checked))
