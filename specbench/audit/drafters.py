"""Drafters that an audit uses in place of a method's drafter: watched, planted and plain ones.

A watched or planted drafter passes every call on to the method's drafter, so that the loop, caches
and graphs are those of a measured completion.
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
    """A drafter that records its trees, and the target's logits along the accepted paths.

    The loop shows a step's result only before the next step, so the logits of the last step are
    missing.
    """

    def __init__(self, drafter: Drafter, seed: int = 0) -> None:
        """Watch the drafter of a method.

        `seed` fixes the random numbers with which `draft_numbers` places draft tokens.
        """
        super().__init__(drafter)
        self.trees: list[ProposedTree] = []  # one per step
        # The target's logits: the prefill's [1, vocab], then those of each step
        # [root and accepted nodes, vocab].
        self.logits: list[Tensor] = []
        self.drafts: list[DraftNumbers] = []  # one per step whose draft tokens were drawn
        self._generator = torch.Generator().manual_seed(seed)

    def start(self, state: State, prefill: Forward) -> None:
        self.logits.append(prefill.logits[-1:].clone())
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        """Return the method's tree for a step. Keep its nodes and numbers about its draft tokens.

        Draft tokens that were chosen and not drawn get no numbers.
        """
        tree = self._drafter.propose(state)
        num_nodes = int(tree.num_verify)  # nodes that may be accepted, root included
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
    """Numbers that show whether draft tokens were drawn from the distributions q that they claim.

    All tokens of the vocabulary are laid end to end on [0, 1). Each takes a stretch as long as its
    probability. In one order the likeliest token comes first, and equally likely tokens share a
    stretch. The other order is that of token ids. In each order, a random point is chosen in the
    draft token's stretch. If the token was drawn from q, this point is uniform in [0, 1):

        point = (mass of earlier stretches + uniform(0, 1) * mass of its stretch) / total mass

    Args:
        tokens: token ids [draft tokens].
        q: distribution of each draft token [draft tokens, vocab].
        generator: draws the uniform numbers.
    """
    q, tokens = q.double().cpu(), tokens.cpu()
    # A mass is a sum of probabilities. All arrays below are [draft tokens], except token_q.
    mass = q.sum(-1)  # of all tokens: 1 up to rounding
    token_q = q.gather(1, tokens[:, None])  # of the draft token [draft tokens, 1]
    likelier_mass = q.masked_fill(q <= token_q, 0.0).sum(-1)
    equal_mass = q.masked_fill(q != token_q, 0.0).sum(-1)  # of the token and equally likely ones
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
    """Proposes only the pending token."""

    tree_sizes = (1,)

    def propose(self, state: State) -> DraftTree:
        return state.chain()


class Planted(WrappedDrafter):
    """A method's drafter with the right tokens planted in its trees, at changing depths and ranks.

    The target accepts hardly any drafts of a weak drafter. Without planting, caches, residuals and
    bonus tokens deep in a tree would not be tested.

    In even steps the right tokens lie on the path to the deepest node of the tree, in odd steps on
    a path through children of changing ranks. A step with the deepest tree so far counts as even.
    """

    def __init__(self, drafter: Drafter, right_ids: Sequence[int], first_step: int = 0) -> None:
        """Plant the right tokens in the trees of a method's drafter.

        Args:
            drafter: the method's drafter.
            right_ids: the right token ids of the prompt and the answer.
            first_step: the number of the first step.
        """
        super().__init__(drafter)
        # number of tokens before a position -> the method's own draft tokens for the position
        self.first_drafts: dict[int, list[int]] = {}
        # Right tokens in the tree of each step, but no more than the budget has room for beside the
        # target's own token.
        self.num_planted: list[int] = []
        # levels below the root in the tree of each step, but no more than the budget has room for
        self.depths: list[int] = []
        self._right_ids = right_ids
        self._first_step = first_step

    def start(self, state: State, prefill: Forward) -> None:
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        """Return the method's tree for a step, with right tokens planted in it.

        Keep the step's first draft tokens, its number of right tokens and the depth of its tree.
        """
        tree = self._drafter.propose(state)
        num_tokens = len(state.token_ids)  # of the prompt and the answer so far
        num_nodes = int(tree.num_verify)  # nodes that may be accepted, root included
        # token and parent of each node below the root
        nodes = zip(
            tree.tokens[1:num_nodes].tolist(),
            tree.layout.parents[1:num_nodes].tolist(),
            strict=True,
        )
        self.first_drafts[num_tokens] = [token for token, parent in nodes if parent == 0]
        # the right token id of each level below the root
        level_ids = self._right_ids[num_tokens : num_tokens + tree.layout.max_depth]
        most_accepted = state.remaining - 1  # the budget keeps one token for the target's own
        depth = min(int(tree.layout.depths[:num_nodes].max()), most_accepted)
        is_deepest_yet = depth > max(self.depths, default=0)
        # `plant` takes the deepest path in even steps, and a path of changing ranks in odd steps.
        step = 0 if is_deepest_yet else self._first_step + len(self.num_planted)
        planted_tree, num_planted = plant(tree, level_ids, step)
        self.num_planted.append(min(num_planted, most_accepted))
        self.depths.append(depth)
        return planted_tree

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)
