"""`specbench fetch`: download ahead of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli import complete
from specbench.cli.options import Many, say, split
from specbench.errors import UserError


def fetch(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A model, with all its draft weights.",
            autocompletion=complete.models,
        ),
    ] = None,
    dataset: Annotated[
        Many,
        typer.Option(
            metavar="TASK,...",
            help="Tasks, for the papers' prompts.",
            autocompletion=complete.datasets,
        ),
    ] = None,
) -> None:
    """Download prompts, models and draft weights ahead of a run."""
    from specbench.measure.fetch import fetch as fetch_files

    tasks = split(dataset) or (() if model else None)
    errors: list[UserError] = []
    for fetched in fetch_files(tasks, model):
        if fetched.error is None:
            say(f"{fetched.what}: {fetched.num_bytes / 1e6:.1f} MB", is_error=False)
        else:
            errors.append(fetched.error)
            say(fetched.error.message)
    # A hint to fetch would lead back here.
    for hint in dict.fromkeys(e.hint for e in errors if "specbench fetch" not in e.hint):
        say(hint)
    if errors:
        say("The same command fetches what is missing; what is there is kept.")
    raise typer.Exit(2 if errors else 0)
