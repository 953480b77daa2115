"""Drafts of several tokens in one pass, through mask tokens after the pending token."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from specbench.engine.drafter import State
from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree
from specbench.methods._features import FeatureDrafter, ModelT
from specbench.methods._head_fields import one_value
from specbench.methods.shared.checkpoint import Checkpoint


def draw_chain(root: Tensor, logits: Tensor, sampler: Sampler) -> tuple[Tensor, ...]:
    """Draw a chain below `root` [1] from `logits` [n, vocab].

    Returns its tokens [1 + n], a score [1] and, if it is sampled, `q` [1 + n, vocab]. Draft tokens
    are drawn independently with the request's own settings: none depends on another.
    """
    if sampler.sampling.is_greedy:
        best_ids = sampler.best_ids(logits)
        return torch.cat([root, best_ids]), logits.amax()[None]
    probs = sampler.probs(logits)
    tokens = torch.cat([root, sampler.draw(probs)])
    q = torch.cat([torch.zeros_like(probs[:1]), probs])
    score = probs[:, 0].amax()[None]  # NaN if any entry is: a NaN fills its row
    return tokens, score, q


def chain_of(tokens: Tensor, score: Tensor, *q: Tensor) -> DraftTree:
    """The draft tree of a chain, from the values that `draw_chain` returns."""
    return DraftTree.chain(tokens, q[0] if q else None, score)


class ParallelDrafter(FeatureDrafter[ModelT]):
    """Drafts a chain in one pass."""

    _drafted: Callable[..., tuple[Tensor, ...]]
    """Draft a chain from the values of `draft_inputs`. Returns what `draw_chain` returns."""

    def propose(self, state: State) -> DraftTree:
        draft = self._execution.wrap(self._drafted)
        inputs = self.draft_inputs(state)
        span = self.cache_span(state)
        return chain_of(*draft(*inputs, cache_span=span, sampler=state.sampler))


def mask_token(
    checkpoint: Checkpoint, fields: Mapping[str, Any], names: tuple[str, ...], vocab_size: int
) -> int:
    """The id of the mask token, which the config `fields` give under one of `names`."""
    present = {name: fields[name] for name in names if fields.get(name) is not None}
    token = one_value(checkpoint, present)
    if token is None:
        error = checkpoint.error(f"has a config without {' or '.join(names)}")
        if checkpoint.method == "peagle":
            error.hint = "Name it: --method peagle:mask_token=ID."
        raise error
    if type(token) is not int or not 0 <= token < vocab_size:
        name = min(present)
        raise checkpoint.error(f"has {name} {token!r}, but there are {vocab_size} tokens")
    return token
