"""`specbench verify`: is a run sound, and may it enter the leaderboard?"""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli.options import RunArguments, write_data


def verify(
    run: RunArguments,
    leaderboard: Annotated[
        bool,
        typer.Option("--leaderboard", help="Fail for a run that may not enter the leaderboard."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Check the files of runs: schema, hashes, counts, times; and what excludes them."""
    from specbench.judge.files import verify as verify_run
    from specbench.judge.files_terminal import print_verifications, to_json
    from specbench.report.export.terminal import report_console

    found = [verify_run(path) for path in run]
    if json:
        write_data(to_json(found))
    else:
        print_verifications(found, report_console())
    is_passed = all(one.is_eligible if leaderboard else one.is_sound for one in found)
    raise typer.Exit(0 if is_passed else 1)
