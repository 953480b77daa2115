"""Watched completions: each step's tree, and the target's logits along the accepted path.

A watched drafter passes everything on to the method's own, so the loop, its caches and its
graphs are those of a measured completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree


@dataclass(frozen=True, slots=True)
class ProposedTree:
    """A draft tree on the host, without scratch nodes. The root's parent is itself."""

    tokens: Sequence[int]
    parents: Sequence[int]

    def child(self, node: int, token: int) -> int | None:
        """The child of a node that carries a token; None without one."""
        return next((i for i in self.children(node) if self.tokens[i] == token), None)

    def children(self, node: int) -> list[int]:
        return [i for i, parent in enumerate(self.parents) if parent == node and i]


class WatchedDrafter(Drafter):
    """A drafter whose trees and accepted logits are kept.

    The loop shows a step's result before the next step only, so the logits of the last step
    are missing. `guesses` hold rows as `guess_positions` returns them.
    """

    def __init__(self, drafter: Drafter, seed: int = 0) -> None:
        self.needs, self.rule = drafter.needs, drafter.rule
        self.tree_sizes = drafter.tree_sizes
        self.trees: list[ProposedTree] = []
        self.logits: list[Tensor] = []  # [nodes of the path, vocab] each; the prefill's first
        self.guesses: list[Tensor] = []
        self._drafter = drafter
        self._generator = torch.Generator().manual_seed(seed)

    def start(self, state: State, prefill: Forward) -> None:
        self.logits.append(prefill.logits[-1:].clone())
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        tree = self._drafter.propose(state)
        n = int(tree.num_verify)
        tokens, parents = tree.tokens[:n].tolist(), tree.layout.parents[:n].tolist()
        self.trees.append(ProposedTree(tokens, parents))
        if tree.q is not None and n > 1:
            self.guesses.append(guess_positions(tree.tokens[1:n], tree.q[1:n], self._generator))
        return tree

    def observe(self, state: State, result: StepResult) -> None:
        path = torch.tensor(result.verdict.path, device=result.forward.logits.device)
        self.logits.append(result.forward.logits.index_select(0, path))
        self._drafter.observe(state, result)


def guess_positions(tokens: Tensor, q: Tensor, generator: torch.Generator) -> Tensor:
    """Rows [guesses, 4] about drafted `tokens` [guesses] and their distributions `q` [.., vocab].

    The columns are the position of the token in its distribution, with tokens by falling
    probability and by id; its probability; and the distribution's mass. A token that was drawn
    from q has positions that are uniform in [0, 1): within the token's own share they are
    drawn.
    """
    q, tokens = q.double().cpu(), tokens.cpu()
    mass = q.sum(-1)
    own = q.gather(1, tokens[:, None])
    likelier = q.masked_fill(q <= own, 0.0).sum(-1)
    equal = q.masked_fill(q != own, 0.0).sum(-1)
    before = q.cumsum(-1).gather(1, tokens[:, None])[:, 0] - own[:, 0]
    within = torch.rand(len(tokens), dtype=torch.float64, generator=generator)
    by_rank, by_id = (likelier + within * equal) / mass, (before + within * own[:, 0]) / mass
    return torch.stack([by_rank, by_id, own[:, 0], mass], 1)
