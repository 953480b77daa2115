"""Grids: the sizes of drafts and steps that are timed, tried or shipped. All are declared here."""

from collections.abc import Iterable

ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 60)
"""Rows of a step that the warm-up of a run times, up to the run's largest draft; also the sizes
of the trees that a tune tries. They are denser where a row more changes the speed most.
"""
TILES = (4, 8, 16, 32, 64)
"""Rows that kernels compute at once. A step becomes slower in jumps, right behind them."""
STEP_ROWS = tuple(sorted({*ROWS, *(tile + offset for tile in TILES for offset in (-1, 0, 1))}))
"""Row counts that a cost curve measures: `ROWS`, and one row either side of each tile."""

TIMED_TOP_K = (1, 2, 4, 6, 10)
"""`top_k` of the dynamic trees whose draft a cost curve times; those between interpolate."""
TIMED_POOL_ROWS = 6
"""Nodes of these trees: a small tree keeps the target's part of a step short."""
TIMED_NODES = (2, 4, 8, 16, 32)
"""Nodes of the static trees whose draft a cost curve times, below the method's largest tree."""
TIMED_CHAINS = (1, 2, 4, 8, 16, 32)
"""Draft tokens of the chains that a cost curve times: their time grows evenly with the length."""

TRIED_DEPTHS = (0, 1, 2, 3, 5, 7)
"""`depth` of the dynamic trees that a tune tries, up to the paper's 7."""
TRIED_TOP_K = (1, 2, 4, 6, 10)
"""`top_k` of these trees, up to the paper's 10."""
TRIED_CHAINS = (1, 2, 3, 4, 6, 8, 12)
"""Draft tokens of the chains that a tune tries: later tokens are seldom accepted."""
TRIED_COPIES = (1, 2, 3, 4, 6, 10, 16, 24)
"""Draft tokens of the copies from text that a tune tries: they cost nothing to draft."""

SHIPPED_NODES = (2, 3, 4, 6, 8, 12, 16)
"""Nodes of the static trees with shipped acceptance: up to what is cheap on a CPU."""
SHIPPED_CHAINS = (1, 2, 3, 4, 6)
"""Draft tokens of the chains with shipped acceptance."""
SHIPPED_TREES = (
    {"total_tokens": 2, "depth": 0, "top_k": 1},
    {"total_tokens": 3, "depth": 1, "top_k": 1},
    {"total_tokens": 4, "depth": 2, "top_k": 1},
    {"total_tokens": 5, "depth": 3, "top_k": 1},
    {"total_tokens": 4, "depth": 1, "top_k": 2},
    {"total_tokens": 5, "depth": 1, "top_k": 3},
    {"total_tokens": 6, "depth": 2, "top_k": 2},
    {"total_tokens": 8, "depth": 3, "top_k": 2},
    {"total_tokens": 8, "depth": 2, "top_k": 4},
    {"total_tokens": 12, "depth": 3, "top_k": 4},
    {"total_tokens": 12, "depth": 2, "top_k": 6},
    {"total_tokens": 16, "depth": 2, "top_k": 8},
    {"total_tokens": 16, "depth": 4, "top_k": 4},
    {"total_tokens": 24, "depth": 5, "top_k": 6},
)
"""Dynamic trees with shipped acceptance: first chains, then wider trees."""


def up_to(largest: int, sizes: Iterable[int]) -> list[int]:
    """The sizes of a grid below `largest`, and `largest` itself."""
    return sorted({*(size for size in sizes if size < largest), largest})
