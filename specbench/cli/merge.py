"""`specbench merge`: runs of the same work as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import RunArguments, say


def merge(
    run: RunArguments,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the merged run.")],
) -> None:
    """Join runs of the same work: more prompts or passes, from other times or machines."""
    from specbench.log.merge import merged, write_run
    from specbench.log.store import read_run

    joined = merged([read_run(path) for path in run])
    write_run(joined, out)
    say(f"{out}: {len(joined.records)} records of {len(joined.header.origins)} runs")
