"""Records the steps of trees whose size changes, before anything is timed.

A method with one size of tree records its steps when it first decodes; a chain of a changing
length would record one in the midst of a sample.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specbench.engine.accept import judge, lossless
from specbench.engine.graphs import BUCKET
from specbench.engine.target import Target
from specbench.engine.tree import NUM_NODES, DraftTree, TreeLayout
from specbench.types import Sampling


@torch.inference_mode()
def rehearse(target: Target, num_tokens: int, samplings: Iterable[Sampling]) -> None:
    """Run trees of every padded size in every bucket that a sequence so long goes through."""
    samplers = [target.sampler(sampling, seed=0) for sampling in samplings]
    target.reserve(num_tokens + BUCKET)
    for end in range(BUCKET, num_tokens + BUCKET, BUCKET):
        for size in NUM_NODES:
            target.cache.length = end - size
            tree = DraftTree.chain(torch.zeros(size, dtype=torch.long, device=target.device))
            logits = target.forward(tree).logits
            for sampler in samplers if end == BUCKET else ():
                # Only what is no chain is settled on the device, and this fits into any room.
                star = TreeLayout.from_parents([0] * size, target.device)
                starred = DraftTree(tree.tokens, star, size)
                chosen = judge(lossless, starred, logits, sampler, target.execution)
                target.settle(star, chosen)
                if size > 1 and not sampler.sampling.is_greedy:
                    drawn = DraftTree.chain(tree.tokens, torch.zeros_like(sampler.probs(logits)))
                    judge(lossless, drawn, logits, sampler, target.execution)
    target.cache.reset()
