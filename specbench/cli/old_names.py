"""Commands under their older names: each does what it did, and `app` says where it went."""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli.audit import Model, audit_method
from specbench.cli.catalog import print_schema
from specbench.cli.check import Json, Leaderboard, check_all_files
from specbench.cli.options import Full, Offline, RunArguments
from specbench.cli.report import print_power


def verify(run: RunArguments, leaderboard: Leaderboard = False, json: Json = False) -> None:
    """Check the files of runs."""
    checked = check_all_files(run, leaderboard=leaderboard, json=json)
    raise typer.Exit(0 if all(one.is_passed for one in checked) else 1)


def contract(
    name: Annotated[str, typer.Argument(metavar="METHOD", help="A method, with options.")],
    model: Model = "tiny",
    full: Full = False,
    offline: Offline = False,
) -> None:
    """Check that a method is lossless."""
    audit_method(name, model, is_full=full, is_offline=offline)


def schema(kind: Annotated[str, typer.Argument(metavar="FILE")] = "header") -> None:
    """Print the JSON Schema of a run's files."""
    print_schema(kind)


def plan(run: RunArguments) -> None:
    """Count the prompts that a difference needs."""
    print_power(run)
