"""Drafters that an audit puts in place of a method's own: watched, planted, and a plain one.

A watched or planted drafter passes everything on to the method's own, so that loop, caches and
graphs are as in a measured completion.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.audit.numbers import DraftNumbers
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.planting import plant
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.engine.wrapped import WrappedDrafter


class ProposedTree(NamedTuple):
    """A draft tree on the host, without scratch nodes."""

    tokens: Sequence[int]
    parents: Sequence[int]
    """The parent of each node. The root's is itself."""


class WatchedDrafter(WrappedDrafter):
    """A drafter whose trees and accepted logits are kept.

    The loop shows a step's result only before the next step, so the logits of the last step are
    missing.
    """

    def __init__(self, drafter: Drafter, seed: int = 0) -> None:
        """Watch a method's `drafter`. `seed` fixes the random numbers that place each draft token
        within its own share of q (see `draft_numbers`).

        The needs, the acceptance rule and the trees' sizes are the method's.
        """
        super().__init__(drafter)
        self.trees: list[ProposedTree] = []  # one per step: tokens and parents of its nodes
        # The target's: first the prefill's [1, vocab], then [accepted nodes, vocab] per step.
        self.logits: list[Tensor] = []
        self.drafts: list[DraftNumbers] = []  # one per step whose draft tokens were drawn
        self._generator = torch.Generator().manual_seed(seed)

    def start(self, state: State, prefill: Forward) -> None:
        self.logits.append(prefill.logits[-1:].clone())
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        tree = self._drafter.propose(state)
        num_nodes = int(tree.num_verify)
        parents = tree.layout.parents[:num_nodes].tolist()
        self.trees.append(ProposedTree(tree.tokens[:num_nodes].tolist(), parents))
        if tree.q is not None and num_nodes > 1:
            self.drafts.append(
                draft_numbers(tree.tokens[1:num_nodes], tree.q[1:num_nodes], self._generator)
            )
        return tree

    def observe(self, state: State, result: StepResult) -> None:
        path = torch.tensor(result.verdict.path, device=result.forward.logits.device)
        self.logits.append(result.forward.logits.index_select(0, path))
        self._drafter.observe(state, result)


def draft_numbers(tokens: Tensor, q: Tensor, generator: torch.Generator) -> DraftNumbers:
    """Numbers about drafted tokens [draft tokens] and their distributions q [draft tokens, vocab].

    A token that was drawn from q lies anywhere in its own stretch of [0, 1), on which tokens lie
    end to end, by falling probability or by id. The generator draws the uniform numbers:

        position = mass of the tokens before it + uniform(0, 1) * its own share
    """
    q, tokens = q.double().cpu(), tokens.cpu()
    mass = q.sum(-1)  # [draft tokens], as are all below but token_q; 1 up to rounding
    token_q = q.gather(1, tokens[:, None])  # [draft tokens, 1]
    likelier_mass = q.masked_fill(q <= token_q, 0.0).sum(-1)
    equal_mass = q.masked_fill(q != token_q, 0.0).sum(-1)
    probability = token_q[:, 0]
    lower_id_mass = q.cumsum(-1).gather(1, tokens[:, None])[:, 0] - probability
    uniform = torch.rand(len(tokens), dtype=torch.float64, generator=generator)
    return DraftNumbers(
        by_rank=((likelier_mass + uniform * equal_mass) / mass).numpy(),
        by_id=((lower_id_mass + uniform * probability) / mass).numpy(),
        probability=probability.numpy(),
        mass=mass.numpy(),
    )


class Plain(Drafter):
    """Proposes the pending token alone."""

    tree_sizes = (1,)

    def propose(self, state: State) -> DraftTree:
        return state.chain()


class Planted(WrappedDrafter):
    """A method's drafter with the right token planted in its trees, at changing depths and ranks.

    Random drafts are hardly ever accepted, so caches, residuals and bonus tokens deep in a tree
    would not be tested.

    In even steps the path goes to the deepest node of the tree, in odd steps to children of
    changing ranks. A step with the deepest tree so far counts as even.

    Args:
        drafter: the method's own drafter.
        answer: all right tokens, prompt included.
        first_step: the number from which steps are counted.
    """

    first_drafts: dict[int, list[int]]
    """The method's own draft tokens for the next position, by the number of tokens before it."""
    num_planted: list[int]
    """Right tokens in the tree of each step, as far as the budget allows."""
    depths: list[int]
    """The depth of each tree, as far as the budget allows."""

    def __init__(self, drafter: Drafter, answer: Sequence[int], first_step: int = 0) -> None:
        """Plant `answer`, the right token ids with the prompt's, in the trees of a `drafter`.

        Steps count from `first_step`; a step's number decides on which path of its tree the right
        tokens are. It takes its needs of the target, its acceptance rule and its tree sizes from
        the drafter. Each step adds its first draft tokens, its number of right tokens and its
        depth.
        """
        super().__init__(drafter)
        self.first_drafts = {}  # number of tokens before a step -> its own first draft tokens
        self.num_planted = []  # per step: right tokens in its tree
        self.depths = []  # per step: depth of its tree, within the budget
        self._answer = answer
        self._first_step = first_step

    def start(self, state: State, prefill: Forward) -> None:
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        """The method's own tree for the next tokens after `state`, with right tokens planted.

        `self._answer` are the right token ids, the prompt's included. `num_planted` and `depths`
        of `self` have a number for each earlier step.
        """
        own_tree = self._drafter.propose(state)
        num_tokens = len(state.token_ids)  # of the prompt and the answer so far
        num_nodes = int(own_tree.num_verify)  # that may be accepted: the first ones, root included
        # Token and parent of each node below the root. Children of the root are first drafts.
        nodes = zip(
            own_tree.tokens[1:num_nodes].tolist(),
            own_tree.layout.parents[1:num_nodes].tolist(),
            strict=True,
        )
        self.first_drafts[num_tokens] = [token for token, parent in nodes if parent == 0]
        # Right token ids of the levels below the root.
        right_tokens = self._answer[num_tokens : num_tokens + own_tree.layout.max_depth]
        deepest = int(own_tree.layout.depths[:num_nodes].max())  # of the nodes that may be accepted
        # `remaining`: tokens left of the budget. The bonus token takes one of them.
        depth = min(deepest, state.remaining - 1)
        is_deepest = depth > max(self.depths, default=0)
        # `plant` takes the deepest path in even steps, and a path of changing ranks in odd steps.
        step = 0 if is_deepest else self._first_step + len(self.num_planted)
        planted_tree, num_planted = plant(own_tree, right_tokens, step)
        self.num_planted.append(min(num_planted, state.remaining - 1))
        self.depths.append(depth)
        return planted_tree

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)
