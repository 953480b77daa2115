"""Oracle drafters, whose drafts are accepted: the right tokens planted, or the target plus noise.

Random drafts are hardly ever accepted, so caches, residuals and bonus tokens deep in a tree
would not be tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.planting import plant
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, TreeLayout

SHAPE = (3, 2, 2, 1)
"""Children at each depth below one expanded node of the level above."""


class Planted(Drafter):
    """A method's drafter with the right token planted in its trees, at changing depths and ranks.

    `answer` are all right tokens, prompt included. Steps are counted from `first_step`: in
    even ones the path goes to the deepest node of the tree, in odd ones to children of
    changing ranks. The deepest tree so far counts as an even one. `trees` are the method's own
    proposals by the number of tokens before them, `depths` the depths of the trees as far as
    the budget allows.
    """

    def __init__(self, drafter: Drafter, answer: Sequence[int], first_step: int = 0) -> None:
        self.needs, self.rule = drafter.needs, drafter.rule
        self.tree_sizes = drafter.tree_sizes
        self.trees: dict[int, DraftTree] = {}
        self.num_planted: list[int] = []
        self.depths: list[int] = []
        self._drafter, self._answer, self._first_step = drafter, answer, first_step

    def start(self, state: State, prefill: Forward) -> None:
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        tree, at = self._drafter.propose(state), len(state.token_ids)
        self.trees[at] = replace(tree, tokens=tree.tokens.clone())
        right = self._answer[at : at + tree.layout.max_depth]
        depth = min(_depth(tree), state.remaining - 1)
        is_deepest = depth > max(self.depths, default=0)
        step = 0 if is_deepest else self._first_step + len(self.num_planted)
        planted = plant(tree, right, step)
        self.num_planted.append(min(planted[1], state.remaining - 1))
        self.depths.append(depth)
        return planted[0]

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)


def _depth(tree: DraftTree) -> int:
    """The depth of the nodes that may be accepted."""
    return int(tree.layout.depths[: int(tree.num_verify)].max())


class NoisyTarget(Drafter):
    """Drafts a tree with a model, to whose logits noise of a spread is added.

    The model is the target's own, or another one with its vocabulary. Greedy decoding drafts
    the best tokens. Sampling draws the children of a node from q without replacement, in the
    request's settings. In each level one node is expanded, of changing rank.
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
        row = model.extend(state.token_ids[model.cache.length :])
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
        """Tokens of up to `width` children after logits [vocab], with the q of each [vocab]."""
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
        logits = self._model.extend(path[::-1])
        self._model.crop(length)
        return logits
