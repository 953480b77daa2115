"""A drafter whose drafts are often accepted: the target itself, with noise on its logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.drafter import Drafter, State
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, TreeLayout

SHAPE = (3, 2, 2, 1)
"""The number of children at each depth, below one expanded node of the previous level."""


class NoisyTarget(Drafter):
    """Drafts a tree with a model, and adds noise of a given spread to its logits.

    The model is the target's own, or another one with its vocabulary. Greedy decoding drafts
    the best tokens. Sampling draws the children of a node from q without replacement, in the
    request's settings. In each level one node is expanded, and its rank changes from level to
    level.
    """

    def __init__(
        self, target: Target, noise: float = 0.5, shape: Sequence[int] = SHAPE, *,
        is_drawn: bool = True,
    ) -> None:  # fmt: skip
        self._model, self._noise = Target(target.model), noise
        self._shape, self._is_drawn = shape, is_drawn
        self._generator = torch.Generator(target.device)
        self._step = 0

    def start(self, state: State, prefill: Forward) -> None:
        self._model.crop(0)
        self._generator.manual_seed(state.request.seed + 1)
        self._step = 0

    def propose(self, state: State) -> DraftTree:
        model = self._model
        model.crop(min(model.cache.length, state.num_committed))
        row = model.extend(torch.tensor(state.token_ids[model.cache.length :], device=model.device))
        tokens, parents, rows = [state.pending], [0], [torch.zeros_like(row)]
        node = 0
        for level, width in enumerate(self._shape):
            ids, drawn_from = self._children(row, width, state)
            first = len(tokens)
            tokens += ids
            parents += [node] * len(ids)
            rows += drawn_from
            node = first + (self._step + level) % len(ids)
            if level < len(self._shape) - 1:
                row = self._row(tokens, parents, node)
        self._step += 1
        layout = TreeLayout.from_parents(parents, row.device)
        q = torch.stack(rows) if self._is_drawn and not state.sampler.sampling.is_greedy else None
        return DraftTree(torch.tensor(tokens, device=row.device), layout, len(tokens), q)

    def _children(self, row: Tensor, width: int, state: State) -> tuple[list[int], list[Tensor]]:
        """The tokens of up to `width` children after logits [vocab], and the q [vocab] of each."""
        noise = torch.randn(
            row.shape, dtype=row.dtype, device=row.device, generator=self._generator
        )
        row = row + self._noise * noise
        sampler = state.sampler
        if not self._is_drawn or sampler.sampling.is_greedy:
            ids = row.topk(width).indices.tolist()
            return ids, [torch.zeros_like(row)] * width
        left = sampler.probs(row[None])[0]
        ids, q = [], []
        for _ in range(min(width, int((left > 0).sum()))):
            q.append(left / left.sum())
            ids.append(int(sampler.draw(q[-1][None])))
            left = left.clone()
            left[ids[-1]] = 0
        return ids, q

    def _row(self, tokens: Sequence[int], parents: Sequence[int], node: int) -> Tensor:
        """The model's logits after a node of the tree drafted so far."""
        path: list[int] = []
        while node:
            path.append(tokens[node])
            node = parents[node]
        length = self._model.cache.length
        logits = self._model.extend(torch.tensor(path[::-1], device=self._model.device))
        self._model.crop(length)
        return logits
