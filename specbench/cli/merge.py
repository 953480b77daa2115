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
    from specbench.log.merge import merge as merge_runs
    from specbench.log.merge import write_merged
    from specbench.log.store import read_run

    merged = merge_runs([read_run(path) for path in run])
    write_merged(merged, out)
    say(f"{out}: {len(merged.records)} records of {len(merged.header.origins)} runs")
