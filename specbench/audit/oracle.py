"""A drafter whose drafts are accepted, since the right tokens are planted in them.

Random drafts are hardly ever accepted, so caches, residuals and bonus tokens deep in a tree
would not be tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.planting import plant
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree


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
