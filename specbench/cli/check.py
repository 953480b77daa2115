"""`specbench check`: check a run against its baseline, as in CI, or check only the run's files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.options import RunArguments, complete_runs, takes, write_data
from specbench.errors.kinds import UserError
from specbench.judge.allowed import Allowed
from specbench.log.folders import run_folder, single_runs
from specbench.log.options import options
from specbench.log.store import read_run


def _baseline(text: str) -> Path:
    if not text:
        raise UserError("--baseline is empty.", "Give the folder of a run.")
    return run_folder(Path(text))


@takes(*options(Allowed))
def check(
    run: RunArguments,
    values: Mapping[str, Any],
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="The run to check against; several (--baseline A B C) also measure run-to-run "
            "noise [default: check only the files]",
            parser=_baseline,
            autocompletion=complete_runs,
        ),
    ] = None,
    leaderboard: Annotated[
        bool,
        typer.Option("--leaderboard", help="Fail if a run may not enter the leaderboard."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML file.")
    ] = None,
) -> None:
    """Fail if a run is slower or accepts less than its baseline runs, or has damaged files.

    Without --baseline, only the files of the runs are checked: schema, hashes, counts, times.
    """
    from specbench.judge.check_formats import to_json, write_junit
    from specbench.judge.files import check_files
    from specbench.judge.gate import check as check_run
    from specbench.judge.printer import print_checks

    allowed = Allowed(**values)
    if baseline:
        if leaderboard:
            raise UserError("--leaderboard checks only files.", "Leave out --baseline.")
        kind = "specbench check"
        first, *others = run  # B and C of `--baseline A B C` are arguments
        baselines = [read_run(path) for path in (*baseline, *others)]
        checked = [check_run(read_run(first), baselines[0], allowed, more=baselines[1:])]
    else:
        if values:
            flag = f"--{next(iter(values)).replace('_', '-')}"
            raise UserError(f"{flag} needs a baseline to compare with.", "Give --baseline too.")
        kind = "specbench verification"
        checked = [check_files(path, for_leaderboard=leaderboard) for path in single_runs(run)]
    if json:
        write_data(to_json(checked, kind))
    else:
        print_checks(checked)
    if junit is not None:
        write_junit(checked, junit)
    raise typer.Exit(max(checked_run.exit_code for checked_run in checked))
