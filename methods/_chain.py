"""Chains whose draft tokens are drawn one after the other, each from a pass of a draft model."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree


def draft_chain(
    missing: Tensor, count: int, read: Callable[[Tensor], Tensor], sampler: Sampler
) -> DraftTree:
    """Draft a chain of `count` tokens after `missing` [n], whose last token is the root.

    `read` takes tokens, first `missing`, then each draft token except the last, and returns the
    logits [vocab] after them. Draft tokens are drawn with the request's own settings.
    """
    tokens = [missing[-1:]]
    probs: list[Tensor] = []  # [vocab] of each draft token, if sampled
    scores: list[Tensor] = []
    unread = missing
    for _ in range(count):
        logits = read(unread)
        if sampler.sampling.is_greedy:
            unread = sampler.best_ids(logits[None])
            scores.append(logits.gather(0, unread))
        else:
            p = sampler.probs(logits[None])  # [1, vocab]
            unread = sampler.draw(p)
            probs.append(p[0])
            scores.append(p[0, :1])  # shows any NaN: it makes the whole row NaN
        tokens.append(unread)
    q = None
    if probs:
        no_draw = torch.zeros_like(probs[0])  # the root is not drawn
        q = torch.stack([no_draw, *probs])
    score = torch.cat(scores).amax(0, keepdim=True) if scores else None  # keeps NaN
    return DraftTree.chain(torch.cat(tokens), q, score)
