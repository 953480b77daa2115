"""Draft chains token by token, each from a pass of a draft model."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree


def draft_chain(
    missing: Tensor, count: int, draw: Callable[[Tensor], Iterable[Tensor]], sampler: Sampler
) -> DraftTree:
    """Draft a chain of `count` tokens after `missing` [n]. The last of `missing` is the root.

    `draw` is called `count` times: with `missing`, then with each draft token except the last. It
    runs the draft model over these tokens, and returns a token and a row, as
    `draw_next` does.
    """
    tokens = [missing[-1:]]
    rows: list[Tensor] = []
    unread = missing
    for _ in range(count):
        unread, row = draw(unread)
        tokens.append(unread)
        rows.append(row)
    if not rows:
        return DraftTree.chain(missing[-1:])
    no_draw = torch.zeros_like(rows[0])  # the root is not drawn
    q = None if sampler.sampling.is_greedy else torch.cat([no_draw, *rows])
    score = torch.cat([row[0, :1] for row in rows]).amax(0, keepdim=True)  # keeps NaN
    return DraftTree.chain(torch.cat(tokens), q, score)


def draw_next(logits: Tensor, sampler: Sampler) -> tuple[Tensor, Tensor]:
    """Draw a token [1] after `logits` [1, vocab] with the request's own settings.

    Also returns the token's distribution [1, vocab] or, for greedy decoding, its logit [1, 1]. If
    an entry of the distribution is NaN, all entries are.
    """
    if sampler.sampling.is_greedy:
        token = sampler.best_ids(logits)
        return token, logits.gather(1, token[:, None])
    probs = sampler.probs(logits)
    return sampler.draw(probs), probs
