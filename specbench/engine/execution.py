"""Execution of a step's fixed-shape functions: eager here, as captured graphs in `graphs.cuda`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from torch import Tensor

from specbench.engine.layers.operands import CacheSpan
from specbench.engine.layers.ops import TORCH, Ops

Function: TypeAlias = Callable[..., tuple[Tensor, ...]]
"""Takes tensors as positional arguments. Its keyword arguments are hashable and decide shapes."""


class Execution:
    """Runs the functions of a step. This class runs every operation directly, on exact sizes."""

    is_static = False
    """True if a step's shapes must be the same from step to step."""

    is_joined = False
    """True if one recording may verify a tree, accept a path and commit it."""

    is_paused = False
    """True within `paused`: functions run eagerly."""

    def __init__(self, ops: Ops = TORCH) -> None:
        """`ops` are the operations that compute the layers."""
        self.ops = ops
        self.failures: set[str] = set()
        """The name of each function that could not run this way, and the reason."""

    def wrap(self, function: Function) -> Function:
        """Wrap a function so that this execution runs it. Outputs are valid until the next call.

        The function may run more often than it is called. So anything that it writes to other
        memory must depend only on its inputs.
        """
        return function

    def cache_span(self, num_rows: int, num_more: int) -> CacheSpan:
        """The rows to read of a cache that has `num_rows` committed rows and `num_more` others."""
        return CacheSpan(num_rows)

    def num_nodes(self, num_nodes: int) -> int:
        """Number of nodes that a tree of `num_nodes` nodes is padded to."""
        return num_nodes

    def prompt_size(self, num_tokens: int) -> int | None:
        """Number of tokens that a prompt of `num_tokens` is padded to, or None without padding."""
        return None

    def discard_graphs(self) -> None:
        """Drop all graphs, because memory that functions use besides their inputs has moved."""

    def paused(self) -> AbstractContextManager[None]:
        """Run functions eagerly within the block, so that they keep no memory."""
        return nullcontext()

    @property
    def buffer_bytes(self) -> int:
        """Bytes held for the inputs and outputs of functions."""
        return 0

    def used_bytes(self) -> int:
        """Bytes for the functions that were called since the last call of this method.

        They are these functions' part of `buffer_bytes`, and their scratch memory.
        """
        return 0

    def close(self) -> None:
        """Mark the end of preparations. A graph that is captured later delays a completion."""
