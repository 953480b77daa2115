"""Commands under their older names: each does what it did, and `app` says its new name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from specbench.cli.audit import Audit, audit_method
from specbench.cli.catalog import print_schema
from specbench.cli.check import Json, Leaderboard, check_all_files
from specbench.cli.options import Call, RunArguments, takes
from specbench.cli.report import print_power
from specbench.log.options import options


def verify(run: RunArguments, leaderboard: Leaderboard = False, json: Json = False) -> None:
    """Check the files of runs."""
    checked = check_all_files(run, leaderboard=leaderboard, json=json)
    raise typer.Exit(max(one.exit_code for one in checked))


@takes(*options(Audit, "model"), *options(Call, "full", "offline"))
def contract(
    values: Mapping[str, Any],
    call: Call,
    name: Annotated[str, typer.Argument(metavar="METHOD", help="A method, with options.")],
) -> None:
    """Check that a method is lossless."""
    audit_method(name, Audit(**values).model, call)


def schema(kind: Annotated[str, typer.Argument(metavar="FILE")] = "header") -> None:
    """Print the JSON Schema of a run's files."""
    print_schema(kind)


def plan(run: RunArguments) -> None:
    """Count the prompts that a difference needs."""
    print_power(run)
