"""Launch plans, which are plain arithmetic and need neither a GPU nor Triton."""

from __future__ import annotations

from itertools import product
from math import ceil

import pytest

from specbench.engine.kernels.triton_plan import (
    CACHE_ROWS,
    MOST_SPLITS,
    RESIDENT,
    AttentionPlan,
    plan_attention,
)
from specbench.engine.layers.operands import Heads

GPUS = {"T4": 40, "A10": 72, "A100": 108, "H100": 132, "B200": 148}
LAYERS = {
    "vicuna-7b": Heads(32, 1, 128),
    "vicuna-13b": Heads(40, 1, 128),
    "llama-3-8b": Heads(8, 4, 128),
    "qwen-0.5b": Heads(2, 7, 64),
    "one key head": Heads(1, 1, 128),
}
ROWS = (1, 2, 6, 10, 16, 17, 26, 33, 60, 64, 100)
SPANS = (1, 31, 32, 33, 256, 768, 1024, 4096, 32768)
CASES = [*product(GPUS.values(), LAYERS.values(), ROWS, SPANS, (2, 4))]
"""The processors, heads, rows, span, and bytes per number of each case."""


def planned(
    processors: int, heads: Heads, num_rows: int, span: int, itemsize: int = 2
) -> AttentionPlan:
    return plan_attention(processors, heads, num_rows=num_rows, span=span, itemsize=itemsize)


def check_waves(plan: AttentionPlan, num_programs: int, slots: int) -> None:
    """Check that the programs need this number of waves, if a wave is `slots` programs."""
    assert (plan.waves - 1) * slots < num_programs
    assert num_programs <= plan.waves * slots


def test_every_query_and_every_row_of_the_cache_is_covered_once() -> None:
    for processors, heads, num_rows, span, itemsize in CASES:
        plan = planned(processors, heads, num_rows, span, itemsize)
        queries = num_rows * heads.group
        assert (plan.num_blocks - 1) * plan.block_rows < queries
        assert queries <= plan.num_blocks * plan.block_rows
        assert (plan.num_splits - 1) * plan.split_size < span  # no split is empty
        assert span <= plan.num_splits * plan.split_size
        assert plan.split_size % CACHE_ROWS == 0
        assert 1 <= plan.num_splits <= MOST_SPLITS


def test_no_other_number_of_splits_ends_sooner() -> None:
    for processors, heads, num_rows, span, _ in CASES:
        plan = planned(processors, heads, num_rows, span)
        programs = heads.num_kv * plan.num_blocks
        slots = processors * RESIDENT[plan.block_rows]
        check_waves(plan, programs * plan.num_splits, slots)
        steps = ceil(span / CACHE_ROWS)

        def duration(
            splits: int, steps: int = steps, programs: int = programs, slots: int = slots
        ) -> int:
            waves = ceil(programs * splits / slots)
            return waves * (ceil(steps / splits) + 1)

        durations = [duration(splits) for splits in range(1, min(steps, MOST_SPLITS) + 1)]
        assert duration(plan.num_splits) == min(durations)


def test_long_keys_and_wide_numbers_leave_room_for_one_program() -> None:

    def num_splits(dim: int, itemsize: int) -> int:
        return planned(132, Heads(40, 1, dim), 10, 768, itemsize).num_splits

    assert num_splits(128, 2) == 2 * num_splits(256, 2)
    assert num_splits(128, 2) == 2 * num_splits(128, 4)


@pytest.mark.parametrize(
    ("num_rows", "dim", "block_rows", "resident"),
    [(8, 128, 32, 1), (60, 128, 32, 1), (4, 128, 16, 2), (60, 64, 64, 1), (8, 64, 32, 2)],
)
def test_a_window_over_wide_keys_has_small_programs(
    num_rows: int, dim: int, block_rows: int, resident: int
) -> None:
    heads = Heads(8, 4, dim)
    plan = plan_attention(132, heads, num_rows=num_rows, span=1024, itemsize=2, has_window=True)
    assert plan.block_rows == block_rows
    check_waves(plan, heads.num_kv * plan.num_blocks * plan.num_splits, 132 * resident)
