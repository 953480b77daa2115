"""How the fixed-shape functions of a step are run: one by one here, or as captured graphs.

Knows functions of tensors. Knows nothing of models, trees or methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

from specbench.engine.ops import TORCH, Ops, Reach

Function: TypeAlias = Callable[..., tuple[Tensor, ...]]
"""Tensors as positional arguments, and hashable values by name, which decide the shapes."""


class Execution(Protocol):
    """A way to run a step."""

    @property
    def is_static(self) -> bool:
        """Whether a step's shapes have to be the same from step to step."""

    @property
    def ops(self) -> Ops:
        """What computes the layers."""

    @property
    def failures(self) -> set[str]:
        """Which functions were called, since this was emptied, that cannot be run so, and why."""

    def wrap(self, function: Function) -> Function:
        """The same function, run this way. What it returns is good until it is called again.

        It may be run more often than it is called: what it writes elsewhere has to be the same
        each time that its inputs are.
        """

    def reach(self, num_rows: int, num_more: int) -> Reach:
        """How much of a cache with so many committed rows, and more behind them, is looked at."""

    def num_nodes(self, num_nodes: int) -> int:
        """How many nodes a tree of so many is run with."""

    def forget(self) -> None:
        """Memory that functions have used besides their inputs has moved."""

    def close(self) -> None:
        """The preparations are over: what is recorded from now on falls into somebody's time."""


class Eager:
    """Every operation as it comes, on exactly what there is."""

    is_static = False
    ops = TORCH

    def __init__(self) -> None:
        self.failures: set[str] = set()

    def wrap(self, function: Function) -> Function:
        return function

    def reach(self, num_rows: int, num_more: int) -> Reach:
        return Reach(num_rows)

    def num_nodes(self, num_nodes: int) -> int:
        return num_nodes

    def forget(self) -> None:
        """Nothing is remembered."""

    def close(self) -> None:
        """Nothing is prepared."""
