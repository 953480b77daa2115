"""Plans of launches: the split of work into programs, as pure arithmetic.

Needs neither Triton nor a GPU.
"""

from dataclasses import dataclass
from functools import cache

from specbench.engine.layers.operands import Heads

CACHE_ROWS = 32
"""Cache rows that attention loads at a time: more do not fit the registers."""
RESIDENT = {16: 2, 32: 2, 64: 1}
"""Queries per program -> programs of attention that a processor holds at once.

Registers and shared memory allow this on every GPU for keys of up to 256 bytes per head; with
longer ones, or a window over such keys, a processor holds one program. `benchmarks/kernels.py`
compares it with the compiler's report.
"""
LONGEST_KEY = 256
WIDEST_KEY = 512
"""Bytes of a head from which on a program would spill most of its registers: torch is faster."""
MOST_SPLITS = 32
"""Largest number of splits: one program adds their sums."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Attention's launch: `num_blocks` of queries by `num_splits` of the cache, per key head."""

    block_rows: int
    num_blocks: int
    split_size: int  # rows of the cache, at most
    num_splits: int
    waves: int


@cache
def plan_attention(
    num_processors: int, heads: Heads, *, num_rows: int, span: int, itemsize: int,
    has_window: bool = False,
) -> AttentionPlan:  # fmt: skip
    """The plan for `num_rows` rows of a tree that see `span` rows of a cache.

    As many queries of one key head as fit share a program, which reads the keys once for them.
    """
    num_queries, key = num_rows * heads.group, heads.dim * itemsize
    is_tight = key > LONGEST_KEY or (has_window and key == LONGEST_KEY)
    widest = 64 if itemsize == 2 and not (has_window and is_tight) else 32
    block_rows = min(max(1 << (num_queries - 1).bit_length(), 16), widest)
    num_blocks = -(-num_queries // block_rows)
    resident = 1 if is_tight and (key > LONGEST_KEY or block_rows > 16) else RESIDENT[block_rows]
    num_steps, num_programs = -(-span // CACHE_ROWS), heads.num_kv * num_blocks

    def divided(wanted: int) -> AttentionPlan:
        steps = -(-num_steps // wanted)
        splits = -(-num_steps // steps)
        waves = -(-num_programs * splits // (num_processors * resident))
        return AttentionPlan(block_rows, num_blocks, CACHE_ROWS * steps, splits, waves)

    # A program takes the time of its steps, plus one. Of equals, the one with the fewest splits.
    plans = map(divided, range(1, min(num_steps, MOST_SPLITS) + 1))
    return min(plans, key=lambda plan: plan.waves * (plan.split_size + CACHE_ROWS))
