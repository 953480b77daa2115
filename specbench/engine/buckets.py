"""The numbers of cache rows that recorded steps read. A few sizes serve every context."""

from collections.abc import Callable

from specbench.engine.target import Target

BUCKET = 256
"""Each cache size has this many rows more than a power of two. They are room for a tree."""


def bucket(num_rows: int) -> int:
    """The number of cache rows to read if `num_rows` are filled. It is BUCKET * (2^k + 1).

    A few sizes serve every context: 4 sizes up to 2k tokens, 8 sizes up to 32k. Each size has its
    own recordings. A factor of 1.25 between sizes would need three times as many sizes. The rows
    that are not filled cost little. Our kernels do not read them. Torch's attention reads them all,
    which is on average a quarter more rows than are filled. At 2k tokens, these rows are 2 % of the
    bytes that a step of a 7B model with 32 key heads reads, and 0.4 % with 8 key heads.
    """
    size = 2 * BUCKET
    while size < num_rows:
        size = 2 * size - BUCKET
    return size


def buckets(num_rows: int) -> list[int]:
    """All cache sizes up to the size for `num_rows`, in increasing order."""
    sizes = [bucket(1)]
    while sizes[-1] < num_rows:
        sizes.append(bucket(sizes[-1] + 1))
    return sizes


def run_in_every_bucket(
    model: Target, num_nodes: int, num_tokens: int, run: Callable[[], object]
) -> None:
    """Call `run`, a step over `num_nodes` nodes, at each cache size for up to `num_tokens`."""
    sizes = buckets(num_tokens - 1 + num_nodes)
    model.reserve(sizes[-1])
    if model.eager_reason or model.execution.is_paused:  # nothing is captured
        sizes = sizes[-1:]
    for size in reversed(sizes):  # the largest scratch memory first, so the others share it
        model.cache.length = size - num_nodes
        run()
