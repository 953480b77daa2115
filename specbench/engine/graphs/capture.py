"""Capture the steps that only some completions need, before anything is timed.

A method's first steps capture what all of its steps need. If its trees change in size, later
sizes would otherwise be captured in the middle of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from specbench.engine.buckets import run_in_every_bucket
from specbench.engine.drafter import Drafter, State
from specbench.engine.target import Target
from specbench.engine.tree import PROMPT_SIZES
from specbench.engine.verify import verify
from specbench.types import Request, Sampling


@torch.inference_mode()
def capture_graphs(
    target: Target, drafter: Drafter, num_tokens: int, num_new: int, samplings: Sequence[Sampling]
) -> None:
    """Run every step that the drafter's trees may need, in sequences of up to `num_tokens` tokens.

    At most `num_new` of these tokens are generated; the others are the prompt.
    """
    is_joined = target.execution.is_joined
    drafter.capture_graphs(num_tokens)
    with target.capture(drafter.needs):
        _capture_prompts(target, drafter, num_tokens, num_new, samplings[0])
        for sampling in samplings:
            sampler = target.sampler(sampling, seed=0)
            drafter.capture_draws(num_tokens, sampler)
            trees = list(drafter.trees_to_record(num_new, sampler))
            for tree in reversed(trees):  # large trees first, as in `run_in_every_bucket`
                tree = tree.padded(target.execution.num_nodes(tree.num_nodes))
                step = partial(verify, target, tree, drafter, sampler, is_joined=is_joined)
                run_in_every_bucket(target, tree.num_nodes, num_tokens, step)
    target.cache.reset()


def _capture_prompts(
    target: Target, drafter: Drafter, num_tokens: int, num_new: int, sampling: Sampling
) -> None:
    """Begin a completion for each padded size that prompts of up to `num_tokens` tokens may have.

    The prompt has one token fewer than its padded size, because a draft model also reads the first
    new token.
    """
    for size in reversed(PROMPT_SIZES):
        length = max(1, min(size - 1, num_tokens - min(num_new, 3)))  # leaves tokens to draft
        if target.execution.prompt_size(length) != size:
            continue
        request = Request((0,) * length, num_tokens - length, sampling)
        state = State(request, target.sampler(sampling, seed=0), request.max_new_tokens)
        prefill = target.prefill(request.prompt_ids, num_new=state.remaining)
        state.append(0)
        if state.remaining:
            drafter.start(state, prefill)
            drafter.propose(state)
