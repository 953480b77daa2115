"""The option `--ray`, whose value may be left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from specbench.cli import complete

_OPTION, _WORDS = "--ray", ("local", "auto")

Ray = Annotated[
    str,
    typer.Option(
        _OPTION,
        metavar="[local|ADDRESS]",
        help="Share the prompts among the GPUs of a Ray cluster (docs/cluster.md).",
        autocompletion=complete.choice(*_WORDS),
    ),
]


class RayCommand(TyperCommand):
    """A command whose `--ray` needs no value: alone it is the cluster that this machine is in."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_address(args))


def with_address(words: Sequence[str]) -> list[str]:
    """The words of a command with a value after each `--ray`."""
    filled: list[str] = []
    for word, after in pairwise([*words, ""]):
        filled.append(word)
        if word == _OPTION and after not in _WORDS and ":" not in after:
            filled.append("auto")
    return filled
