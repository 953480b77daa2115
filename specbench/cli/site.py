"""`specbench site`: a static page over many runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import RunArguments, say


def site(
    run: RunArguments,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the page and its files.")],
) -> None:
    """Write a page over many runs: filters, machines and models side by side, published numbers."""
    from specbench.judge.page import write_site

    write_site(run, out, say=say)
    say(str(out / "index.html"))
