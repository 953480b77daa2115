"""A test by random orders: does a method need fewer steps after vanilla has answered?

The order of the methods is drawn anew for each request. An honest method would have given the same
answers in any other order, so the real order is not extreme among many random ones. Nothing is
assumed about the answers. An interval from a few prompts assumes more.
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
    """True if the real order has fewer steps after vanilla's answers than nearly all random orders.

    Args:
        rows: the method's completions, one per request. `baseline_row` is the row of vanilla's
            completion of the same request.
        allowed: the share by which an honest method's ratio may be lower.
    """
    is_after = (rows["baseline_row"] < rows.index).to_numpy()  # vanilla was first: [requests]
    num_tokens = rows["num_emitted"].to_numpy(dtype=float)
    num_steps = rows["num_steps"].to_numpy(dtype=float)
    num_steps = np.where(is_after, (1 + allowed) * num_steps, num_steps)
    generator = np.random.default_rng(SEED)
    order_columns = np.tile(is_after, (NUM_ORDERS, 1))  # [orders, requests]
    orders = generator.permuted(order_columns, axis=1)
    is_other = (orders != is_after).any(axis=1)  # the real order is not compared with itself
    real_ratio = _ratio(is_after[None], num_steps, num_tokens)
    return int((_ratio(orders[is_other], num_steps, num_tokens) <= real_ratio).sum()) <= MOST_AS_LOW


def _ratio(orders: BoolArray, num_steps: FloatArray, num_tokens: FloatArray) -> FloatArray:
    """Steps per token after vanilla / before it, for each order [orders, requests]: [orders]."""
    after = (orders @ num_steps) / (orders @ num_tokens)
    before = (~orders @ num_steps) / (~orders @ num_tokens)
    return after / before
