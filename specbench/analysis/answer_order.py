"""Use random orders to test if a method needs fewer steps after vanilla has answered.

The order of the methods is drawn anew for each request. An honest method would have given the same
answers in any other order, so the real order is not extreme among many random ones. The test
assumes nothing about the answers, unlike an interval from a few prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.stats.arrays import BoolArray, FloatArray

if TYPE_CHECKING:
    from pandas import DataFrame

NUM_ORDERS = 10_000
MOST_AS_LOW = 1
"""The real order is extreme if at most this many random orders have a ratio as low."""
SEED = 0


def is_order_telling(rows: DataFrame, allowed: float) -> bool:
    """Check if a method needs fewer steps after vanilla has answered, beyond what chance explains.

    An order says which of the two, vanilla or the method, answered each request first. The ratio of
    an order is the method's steps per token on the requests that vanilla answered first / its steps
    per token on the others. The result is True if at most MOST_AS_LOW of NUM_ORDERS random orders
    have a ratio no higher than that of the real order. Random orders that equal the real one are
    left out.

    Args:
        rows: the method's completions, one per request. The index has their rows in the record
            table, which is in the order of execution. `baseline_row` is the row of vanilla's
            completion of the same request, and is never -1. `num_emitted` is the number of tokens
            that steps emitted.
        allowed: a share such as 0.05. The ratio of an honest method may be below 1 by about this
            much, so steps on requests that vanilla answered first are multiplied by 1 + `allowed`.
    """
    is_vanilla_first = (rows["baseline_row"] < rows.index).to_numpy()  # [requests]
    num_tokens = rows["num_emitted"].to_numpy(dtype=float)  # [requests]
    num_steps = rows["num_steps"].to_numpy(dtype=float)  # [requests]
    weighted_steps = np.where(is_vanilla_first, (1 + allowed) * num_steps, num_steps)
    generator = np.random.default_rng(SEED)
    # each random order shuffles the real one; True: vanilla was first [orders, requests]
    random_orders = generator.permuted(np.tile(is_vanilla_first, (NUM_ORDERS, 1)), axis=1)
    is_other = (random_orders != is_vanilla_first).any(axis=1)  # False for the real order [orders]
    real_ratio = _ratio(is_vanilla_first[None], weighted_steps, num_tokens)  # [1]
    random_ratios = _ratio(random_orders[is_other], weighted_steps, num_tokens)
    return int((random_ratios <= real_ratio).sum()) <= MOST_AS_LOW


def _ratio(orders: BoolArray, num_steps: FloatArray, num_tokens: FloatArray) -> FloatArray:
    """Divide the steps per token after vanilla by those before vanilla, in each order [orders].

    `orders` is True for the requests that vanilla answered first [orders, requests]. `num_steps`
    and `num_tokens` are the method's [requests].
    """
    after = (orders @ num_steps) / (orders @ num_tokens)
    before = (~orders @ num_steps) / (~orders @ num_tokens)
    return after / before
