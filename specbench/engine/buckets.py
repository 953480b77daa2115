"""Numbers of cache rows that recorded steps read: a few sizes that serve every context."""

from collections.abc import Callable

from specbench.engine.target import Target

BUCKET = 256
"""Rows that every cache size has in addition to a power of two: room for a tree."""


def bucket(num_rows: int) -> int:
    """Number of cache rows to read if `num_rows` are filled: BUCKET * (2^k + 1).

    A few sizes serve every context: 4 up to 2k tokens, 8 up to 32k. Each has its own recordings; a
    factor of 1.25 between sizes would need three times as many. The unfilled rows cost little: our
    kernels do not read them. Torch's attention reads them all, on average a quarter more rows than
    are filled. At 2k tokens, these rows are 2 % of the bytes that a step of a 7B model with 32 key
    heads reads, and 0.4 % with 8 key heads.
    """
    size = 2 * BUCKET
    while size < num_rows:
        size = 2 * size - BUCKET
    return size


def buckets(num_rows: int) -> list[int]:
    """All cache sizes up to the one for `num_rows`, smallest first."""
    sizes = [bucket(1)]
    while sizes[-1] < num_rows:
        sizes.append(bucket(sizes[-1] + 1))
    return sizes


def run_in_every_bucket(
    model: Target, num_nodes: int, num_tokens: int, run: Callable[[], object]
) -> None:
    """Call `run`, a step over `num_nodes` nodes, at every cache size for up to `num_tokens`."""
    sizes = buckets(num_tokens - 1 + num_nodes)
    model.reserve(sizes[-1])
    if model.eager_reason or model.execution.is_paused:  # nothing is captured
        sizes = sizes[-1:]
    for size in reversed(sizes):  # the largest scratch memory first, so the others share it
        model.cache.length = size - num_nodes
        run()
