"""Plan launches: split the work of attention into programs.

This is pure arithmetic. The module needs neither Triton nor a GPU.
"""

from dataclasses import dataclass
from functools import cache

from specbench.engine.layers.operands import Heads

CACHE_ROWS = 32
"""Number of cache rows that attention loads at a time. More rows do not fit in the registers."""
RESIDENT = {16: 2, 32: 2, 64: 1}
"""Queries per program -> number of programs of attention that a processor holds at once.

Registers and shared memory allow this on every GPU for keys of up to 256 bytes per head. With
longer keys, or with a window over keys of 256 bytes and more than 16 queries, a processor holds one
program. `benchmarks/kernels.py` compares these numbers with the compiler's report.
"""
LONGEST_KEY = 256
"""Largest size of a head's key, in bytes, for which the numbers in `RESIDENT` hold."""
WIDEST_KEY = 512
"""Largest size of a head's key, in bytes, that the kernel takes. Above it, a program would spill
many registers, and torch is faster.
"""
MOST_SPLITS = 32
"""Largest number of splits. It is limited because a single program adds the sums of all splits."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A launch of attention, with `num_blocks` * `num_splits` programs for each key head."""

    block_rows: int  # queries per program
    num_blocks: int  # blocks of queries
    split_size: int  # largest number of cache rows of a split
    num_splits: int  # splits of the cache
    waves: int  # rounds of resident programs on a processor, one after the other


@cache
def plan_attention(
    num_processors: int, heads: Heads, *, num_rows: int, span: int, itemsize: int,
    has_window: bool = False,
) -> AttentionPlan:  # fmt: skip
    """The plan for `num_rows` rows of a tree that see `span` rows of a cache.

    A program has as many queries of one key head as fit, and reads the keys once for all of them.
    """
    num_queries = num_rows * heads.group
    key_bytes = heads.dim * itemsize
    is_tight = key_bytes > LONGEST_KEY or (has_window and key_bytes == LONGEST_KEY)
    most_queries = 64 if itemsize == 2 and not (has_window and is_tight) else 32
    next_power_of_2 = 1 << (num_queries - 1).bit_length()
    block_rows = min(max(next_power_of_2, 16), most_queries)
    num_blocks = -(-num_queries // block_rows)
    resident = RESIDENT[block_rows]
    if is_tight and (key_bytes > LONGEST_KEY or block_rows > 16):
        resident = 1
    num_steps = -(-span // CACHE_ROWS)
    num_programs = heads.num_kv * num_blocks  # per split

    def divided(most_splits: int) -> AttentionPlan:
        """The plan with at most `most_splits` splits, which have equal sizes except the last."""
        steps_per_split = -(-num_steps // most_splits)
        num_splits = -(-num_steps // steps_per_split)
        waves = -(-num_programs * num_splits // (num_processors * resident))
        split_size = CACHE_ROWS * steps_per_split
        return AttentionPlan(block_rows, num_blocks, split_size, num_splits, waves)

    # A program takes as long as its steps and one more step. Among equally fast plans, the one with
    # the fewest splits wins.
    plans = map(divided, range(1, min(num_steps, MOST_SPLITS) + 1))
    return min(plans, key=lambda plan: plan.waves * (plan.split_size + CACHE_ROWS))
