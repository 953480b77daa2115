"""EAGLE: one decoder layer extrapolates the target's features into a static tree of 25 tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.drafter import BuildContext, Method, State
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree, additive
from specbench.methods._eagle import EagleDrafter, EagleModel
from specbench.methods.shared.static_tree import (
    TREE_HELP,
    StaticTree,
    TreeOptions,
    best_ids,
    ranks_of,
)
from specbench.types import option


@dataclass(frozen=True, slots=True)
class Options(TreeOptions):
    """Options of EAGLE."""

    tree: str = option("eagle_25", TREE_HELP)
    weights: str = option("", "checkpoint, a folder or hub id")


class Eagle(EagleDrafter):
    """Expands a static tree level by level, with the draft model's output at each parent.

    Greedy decoding drafts the best tokens. Sampling draws a node's children without
    replacement from the draft's distribution, in the order of their ranks.

    Source: Li et al. 2024, "EAGLE"; behaviour checked against SafeAILab/EAGLE and Spec-Bench's
    copy of its first version.

    Deviation: the tree's official name is mc_sim_7b_63, the same as Medusa's.
    """

    profile = "ranks"
    draws_siblings = True
    model: EagleModel

    def __init__(self, options: Options, context: BuildContext) -> None:
        target = context.target
        self._tree = tree = StaticTree.load(options, target)
        self.tree_sizes = (tree.layout.num_nodes,)
        self._sizes = [level.expanders.shape[0] for level in tree.levels]
        model = EagleModel("eagle", context)
        execution = target.execution
        depth = len(tree.levels)
        super().__init__(model, context, num_scratch=sum(self._sizes), depth=depth)
        self._masks = [additive(level.sees, model.stack.dtype) for level in tree.levels]
        self._grow = execution.wrap(self._grown)
        self._ops = execution.ops
        columns = torch.arange(tree.num_candidates, device=target.device)
        self._is_left = columns >= tree.ranks[:, None]  # [nodes, candidates]

    def propose(self, state: State) -> DraftTree:
        tokens, scores, *q = self._grow(
            *self.draft_inputs(state), cache_span=self.cache_span(state), sampler=state.sampler
        )
        return self._tree.filled(tokens, q[0] if q else None, scores)

    def _grown(
        self, end: Tensor, *missing: Tensor, cache_span: CacheSpan, sampler: Sampler
    ) -> tuple[Tensor, ...]:
        """The tree's tokens [nodes] and scores and, if it is sampled, its `q` [nodes, vocab]."""
        model, tree = self.model, self._tree
        root, hidden = self.feed(end, *missing, cache_span=cache_span)
        tokens = [root]  # the tokens of each level
        scores: list[Tensor] = []
        probs: list[Tensor] = []  # [expanders, vocab] of each level, if sampled
        drawn: list[Tensor] = []  # [expanders, candidates] of each level, if sampled
        slots_of_levels = model.stack.tree_slots(end, self._sizes)
        for level, mask, slots in zip(tree.levels, self._masks, slots_of_levels, strict=True):
            if sampler.sampling.is_greedy:
                logits = model.logits(hidden)
                best = self._ops.topk_ids(logits, tree.num_candidates)
                scores.append(logits.gather(1, best[:, :1]))
                candidates = model.token_ids(best)
            else:
                p = sampler.probs(model.whole_logits(hidden))
                probs.append(p)
                scores.append(p[:, :1])  # NaN if any entry is: a NaN fills its row
                candidates = sampler.draw_distinct(p, tree.num_candidates)
                drawn.append(candidates)
            tokens.append(candidates.view(-1).index_select(0, level.source))
            if slots.rows.shape[0]:
                expanded = tokens[-1].index_select(0, level.expanders)
                pairs = model.draft_pairs(hidden, expanded, level.above)
                hidden = model.stack.extend(*pairs, slots, end, mask, cache_span)
        ids = torch.cat(tokens)
        if not probs:
            return ids, torch.cat(scores)
        q = self._proposals(ids, torch.cat(probs), torch.cat(drawn))
        return ids, torch.cat(scores), q

    def ranks(self, state: State, token_ids: Sequence[int]) -> list[int]:
        return ranks_of(token_ids, self._best_along(state, token_ids), len(self._sizes))

    def _best_along(self, state: State, token_ids: Sequence[int]) -> Iterator[Tensor]:
        """The best tokens [ranks] at each depth of a chain with `token_ids` as its draft tokens."""
        model, span = self.model, self.cache_span(state)
        end, *missing = self.draft_inputs(state)
        _, hidden = self.feed(end, *missing, cache_span=span)
        slots_of_levels = model.stack.tree_slots(end, self._sizes)
        for token, slots, mask in zip(token_ids, slots_of_levels, self._masks, strict=False):
            best = best_ids(self._ops, model.logits(hidden))
            yield model.token_ids(best)[0]
            if slots.rows.shape[0]:  # the last level has no children
                pairs = model.draft_pairs(hidden, torch.full_like(slots.rows, token))
                hidden = model.stack.extend(*pairs, slots, end, mask, span)

    def bytes_read(self, num_nodes: int) -> float:
        return self.model.bytes_read(len(self._tree.levels))

    def _proposals(self, tokens: Tensor, probs: Tensor, drawn: Tensor) -> Tensor:
        """The distribution [nodes, vocab] that each node was drawn from.

        A node's earlier siblings have no probability. `probs` is [expanders, vocab], and `drawn` is
        [expanders, candidates]. If no probability is left, because top-p keeps fewer tokens than
        there are children, the node's token gets probability 1.
        """
        parents = self._tree.expander
        q = probs.index_select(0, parents)  # [nodes, vocab]
        siblings = drawn.index_select(0, parents)  # [nodes, candidates]
        left = q.gather(1, siblings) * self._is_left  # 0 for earlier siblings
        q.scatter_(1, siblings, left)
        mass = q.sum(-1, keepdim=True)
        is_empty = mass <= 0
        q /= mass.masked_fill(is_empty, 1.0)
        return q.scatter_add_(1, tokens[:, None], is_empty.to(q.dtype))


METHOD = Method(
    name="eagle",
    title="EAGLE",
    summary="one decoder layer extrapolates the target's features into a static tree of 25 tokens",
    paper="Li et al. 2024, EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty",
    options=Options,
    build=Eagle,
    weights="eagle",
    head="eagle",
    paper_order=6,
    colour="#D1413D",
)
