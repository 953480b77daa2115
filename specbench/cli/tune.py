"""`specbench tune`: record what methods draft, once, and replay their settings from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.options import Call, quiet_libraries, say, takes
from specbench.log.options import options
from specbench.log.spec import SpecValues

commands = typer.Typer(
    help="Record what methods draft, and replay their settings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.callback()
def _group() -> None:
    """Keep `profile` a command of its own."""


@commands.command()
@takes(
    *options(SpecValues, "methods", "model", "tasks", "limit", "max_new_tokens", "seed"),
    *options(SpecValues, "prompts", "device", "threads", "dtype", "weights", "template"),
    *options(Call, "offline"),
)
def profile(
    values: dict[str, Any],
    call: Call,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the profile.")],
) -> None:
    """Record what methods draft at each position of vanilla's answers (docs/tune.md)."""
    from specbench.tune.stored_profile import check_free

    check_free(out)
    quiet_libraries()
    from specbench.tune import profile as make
    from specbench.tune import replay

    model = values.pop("model", "tiny")
    found = make(
        model, values.pop("methods", ()), output=out, offline=call.offline, say=say, **values
    )
    for label in found.header.methods:
        walks = replay(found, label)
        tokens = sum(sum(walk.accepts) for walk in walks)
        steps = sum(len(walk.accepts) for walk in walks)
        if steps:
            say(f"{label}: MAT {tokens / steps:.2f} in {steps:,} steps", is_error=False)
    say(f"Profile: {out}", is_error=False)
