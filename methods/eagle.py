"""EAGLE: one decoder layer extrapolates the target's features; a static tree of 25 guesses."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.engine.accept import Sampler
from specbench.engine.drafter import BuildContext, Method, State
from specbench.engine.ops import Reach
from specbench.engine.tree import DraftTree, additive
from specbench.methods._eagle import EagleDrafter, EagleModel
from specbench.methods._static_tree import StaticTree


@dataclass(frozen=True, slots=True)
class Options:
    """Options of EAGLE."""

    tree: str = field(
        default="eagle_25",
        metadata={"help": "a named tree, a shape such as 4x2x1, or a JSON file of paths"},
    )
    weights: str = field(default="", metadata={"help": "checkpoint, a folder or hub id"})


class Eagle(EagleDrafter):
    """Expands a static tree level by level, each node by the draft model's output above it.

    Greedy decoding guesses the best tokens. Sampling draws the children of a node without
    replacement from the draft's distribution, in the order of their ranks.

    Source: Li et al. 2024, "EAGLE"; behaviour checked against SafeAILab/EAGLE and Spec-Bench's
    copy of its first version.

    Deviation: the tree's official name is mc_sim_7b_63, which it shares with Medusa's.
    """

    def __init__(self, options: Options, context: BuildContext) -> None:
        target = context.target
        self._tree = tree = StaticTree.load(options.tree, target.device, max_rank=target.vocab_size)
        self._sizes = [level.expanders.shape[0] for level in tree.levels]
        model, execution = EagleModel("eagle", context), target.execution
        super().__init__(model, execution, num_scratch=sum(self._sizes), depth=len(tree.levels))
        self._masks = [additive(level.sees, model.layer.dtype) for level in tree.levels]
        self._grow = execution.wrap(self._grown)
        self._ops = execution.ops
        columns = torch.arange(tree.num_candidates, device=target.device)
        self._is_left = columns >= tree.ranks[:, None]  # [nodes, candidates]

    def propose(self, state: State) -> DraftTree:
        tokens, *q = self._grow(*self.given(state), reach=self.reach(state), sampler=state.sampler)
        return DraftTree(tokens, self._tree.layout, self._tree.num_nodes, q[0] if q else None)

    def _grown(
        self, end: Tensor, *missing: Tensor, reach: Reach, sampler: Sampler
    ) -> tuple[Tensor, ...]:
        """Tokens [nodes] behind the missing pairs, and what they were drawn from, if drawn."""
        model, tree = self.model, self._tree
        root, hidden = self.feed(end, *missing, reach=reach)
        guessed = [root]
        probs, drawn = [], []
        places = model.layer.places(end, self._sizes)
        for level, mask, place in zip(tree.levels, self._masks, places, strict=True):
            logits = model.logits(hidden)
            if sampler.sampling.is_greedy:
                guesses = self._ops.likeliest_ids(logits, tree.num_candidates)
            else:
                probs.append(sampler.probs(logits))
                guesses = sampler.draw_distinct(probs[-1], tree.num_candidates)
                drawn.append(guesses)
            guessed.append(guesses.view(-1).index_select(0, level.source))
            if place.rows.shape[0]:
                above = hidden.index_select(0, level.above)
                below = guessed[-1].index_select(0, level.expanders)
                pairs = model.guesses(above, below)
                hidden = model.layer.extend(*pairs, place, end, mask, reach)
        ids = torch.cat(guessed)
        if not probs:
            return (ids,)
        return ids, self._proposals(ids, torch.cat(probs), torch.cat(drawn))

    def bytes_read(self, num_nodes: float) -> float:
        return self.model.bytes_read(len(self._tree.levels))

    def _proposals(self, tokens: Tensor, probs: Tensor, drawn: Tensor) -> Tensor:
        """What each node was drawn from [nodes, vocab]: without the draws before it.

        `probs` [expanders, vocab] and `drawn` [expanders, candidates]. A draw from nothing that is
        left (top-p may leave less tokens than there are children) is a point mass.
        """
        parents = self._tree.expander
        q, earlier = probs.index_select(0, parents), drawn.index_select(0, parents)
        q.scatter_(1, earlier, q.gather(1, earlier) * self._is_left)
        mass = q.sum(-1, keepdim=True)
        is_empty = mass <= 0
        q /= mass.masked_fill(is_empty, 1.0)
        return q.scatter_add_(1, tokens[:, None], is_empty.to(q.dtype))


METHOD = Method(
    name="eagle",
    title="EAGLE",
    summary="one decoder layer extrapolates the target's features; a static tree of 25 guesses",
    paper="Li et al. 2024, EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty",
    options=Options,
    build=Eagle,
    weights="eagle",
)
