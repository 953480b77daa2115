"""Capture the steps that only some completions need, before anything is timed.

A method's first steps capture what all its steps need. Without this module, trees of changing
size would be captured in the middle of a sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch

from specbench.engine.buckets import run_in_every_bucket
from specbench.engine.target import Target
from specbench.engine.verify import verify
from specbench.types import Sampling

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter


@torch.inference_mode()
def capture_graphs(
    target: Target, drafter: Drafter, num_tokens: int, num_new: int, samplings: Iterable[Sampling]
) -> None:
    """Run every step that the drafter's trees may need, in sequences of up to `num_tokens` tokens.

    At most `num_new` of these tokens are generated; the others are the prompt.
    """
    is_joined = target.execution.is_joined
    drafter.capture_graphs(num_tokens)
    with target.capture(drafter.needs):
        for sampling in samplings:
            sampler = target.sampler(sampling, seed=0)
            drafter.capture_draws(num_tokens, sampler)
            trees = list(drafter.trees_to_record(num_new, sampler))
            for tree in reversed(trees):  # large ones first, as in `run_in_every_bucket`
                tree = tree.padded(target.execution.num_nodes(tree.num_nodes))
                step = partial(verify, target, tree, drafter, sampler, is_joined=is_joined)
                run_in_every_bucket(target, tree.num_nodes, num_tokens, step)
    target.cache.reset()
