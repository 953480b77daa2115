"""The option `--ray`, whose value may be left out, and the cluster that it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from specbench.cli import complete

if TYPE_CHECKING:
    from specbench.run.plan import SetupMaker

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


@contextmanager
def setup_maker(address: str) -> Iterator[SetupMaker | None]:
    """The maker of setups in the cluster at an address, until the end of its runs; None without."""
    if not address:
        yield None
        return
    from functools import partial

    from specbench.run.launch.backend import make_cluster_setup
    from specbench.run.launch.ray_cluster import RayCluster

    with RayCluster(address) as cluster:
        yield partial(make_cluster_setup, cluster)
