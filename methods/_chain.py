"""Chains whose draft tokens are drawn one after the other, each from a pass of a draft model."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree


def draft_chain(
    missing: Tensor, count: int, read: Callable[[Tensor], Tensor], sampler: Sampler
) -> DraftTree:
    """A chain of `count` draft tokens below the last of `missing` [n].

    `read` takes tokens, first `missing`, then each draft token but the last, and returns the
    logits [vocab] after them. Draft tokens are drawn with the request's own settings.
    """
    tokens = [missing[-1:]]
    rows: list[Tensor] = []
    scores: list[Tensor] = []
    unread = missing
    for _ in range(count):
        logits = read(unread)
        if sampler.sampling.is_greedy:
            unread = sampler.best_ids(logits[None])
            scores.append(logits.gather(0, unread))
        else:
            rows.append(sampler.probs(logits[None])[0])
            unread = sampler.draw(rows[-1][None])
            scores.append(rows[-1][:1])  # NaN in a whole row, if anywhere
        tokens.append(unread)
    q = torch.stack([torch.zeros_like(rows[0]), *rows]) if rows else None
    score = torch.cat(scores).amax(0, keepdim=True) if scores else None  # keeps NaN
    return DraftTree.chain(torch.cat(tokens), q, score)
