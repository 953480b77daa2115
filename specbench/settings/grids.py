"""The grids of sizes: drafts and steps that are timed, tried or shipped."""

from collections.abc import Iterable

ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 60)
"""The numbers of rows whose steps the warm-up of a run times, up to the run's largest draft. A tune
also tries trees of these sizes. The sizes are closer together where one more row changes
the speed most.
"""
TILES = (4, 8, 16, 32, 64)
"""The numbers of rows that kernels compute at once. The time of a step jumps after each of them."""
STEP_ROWS = tuple(sorted({*ROWS, *(tile + offset for tile in TILES for offset in (-1, 0, 1))}))
"""The numbers of rows that a cost curve measures: `ROWS`, and those around each tile."""

TIMED_TOP_K = (1, 2, 4, 6, 10)
"""`top_k` of the dynamic trees whose draft a cost curve times. It interpolates other values."""
TIMED_POOL_ROWS = 6
"""Nodes of the timed dynamic trees: a small tree keeps the target's part of a step short."""
TIMED_NODES = (2, 4, 8, 16, 32)
"""Nodes of the static trees whose draft a cost curve times, below the method's largest tree."""
TIMED_CHAINS = (1, 2, 4, 8, 16, 32)
"""Draft tokens of the chains that a cost curve times: their time grows evenly with the length."""

TRIED_DEPTHS = (0, 1, 2, 3, 5, 7)
"""`depth` of the dynamic trees that a tune tries, up to the paper's 7."""
TRIED_TOP_K = (1, 2, 4, 6, 10)
"""`top_k` of the dynamic trees that a tune tries, up to the paper's 10."""
TRIED_CHAINS = (1, 2, 3, 4, 6, 8, 12)
"""Draft tokens of the chains that a tune tries: later tokens are seldom accepted."""
TRIED_COPIES = (1, 2, 3, 4, 6, 10, 16, 24)
"""Draft tokens of the copies from text that a tune tries: they cost nothing to draft."""
SERVED_CHAINS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Draft tokens that a tune of a serving engine tries, up to the largest that is asked for."""
SERVED_STEPS = (2, 3, 5)
"""Drafting steps of the trees that a tune of SGLang tries."""
SERVED_TOP_K = (2, 4, 8)
"""Tokens per node of the trees that a tune of SGLang tries."""
SERVED_NODES = (8, 16, 32)
"""Nodes that a step verifies, the root included, in the trees that a tune of SGLang tries."""

SHIPPED_NODES = (2, 3, 4, 6, 8, 12, 16)
"""Nodes of the static trees with shipped acceptance, up to sizes that are cheap on a CPU."""
SHIPPED_CHAINS = (1, 2, 3, 4, 6)
"""Draft tokens of the chains with shipped acceptance."""
SHIPPED_WINDOWS = ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3))
"""N-gram sizes and windows of lookahead with shipped acceptance, the cheapest first."""
SHIPPED_COPIES = ((2, 2), (4, 2), (4, 3), (6, 4), (8, 6), (12, 12))
"""For SAM with shipped acceptance: draft tokens of a copy, and nodes of a tree."""
_SHIPPED_SAM_SHAPES = (
    (4, 4, 1),
    (4, 4, 2),
    (6, 6, 2),
    (8, 8, 2),
    (8, 8, 3),
    (8, 12, 2),
    (8, 12, 3),
    (12, 12, 3),
    (12, 16, 4),
    (16, 24, 5),
)
"""Draft tokens of a copy, nodes of a tree and its depth, for `SHIPPED_SAM_TREES`."""
SHIPPED_SAM_TREES = tuple(
    {"num_tokens": copied, "nodes": num_nodes, "depth": depth}
    for copied, num_nodes, depth in _SHIPPED_SAM_SHAPES
)
"""The copies and dynamic trees of SAM with shipped acceptance."""
_SHIPPED_SHAPES = (
    (2, 0, 1),
    (3, 1, 1),
    (4, 2, 1),
    (5, 3, 1),
    (4, 1, 2),
    (5, 1, 3),
    (6, 2, 2),
    (8, 3, 2),
    (8, 2, 4),
    (12, 3, 4),
    (12, 2, 6),
    (16, 2, 8),
    (16, 4, 4),
    (24, 5, 6),
)
"""Nodes, depth and top-k of the trees in `SHIPPED_TREES`."""
SHIPPED_TREES = tuple(
    {"total_tokens": num_nodes, "depth": depth, "top_k": top_k}
    for num_nodes, depth, top_k in _SHIPPED_SHAPES
)
"""The dynamic trees with shipped acceptance. Chains come first, then wider trees."""


def up_to(largest: int, sizes: Iterable[int]) -> list[int]:
    """Return the sizes of a grid that are smaller than `largest`, and `largest` itself."""
    return sorted({*(size for size in sizes if size < largest), largest})
