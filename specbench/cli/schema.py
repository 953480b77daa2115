"""`specbench schema`: the JSON Schema of a run's files."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def schema(
    kind: Annotated[
        str,
        typer.Argument(metavar="FILE", help="header (run.json), record (samples.jsonl) or trace."),
    ] = "header",
) -> None:
    """Print the JSON Schema of a run's files."""
    from specbench.log.schema import json_schema

    typer.echo(json.dumps(json_schema(kind), indent=2))
