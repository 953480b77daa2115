"""EAGLE-2's dynamic tree, which grows by the draft's confidence. Only its best nodes are kept."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from specbench.engine.drafter import BuildContext, State
from specbench.engine.layers.operands import Beam, CacheSpan
from specbench.engine.layers.ops import TORCH, JoinedHead, Ops
from specbench.engine.method_options import MethodOptions
from specbench.engine.tree import DraftTree, TreeLayout, chain_layout
from specbench.methods._draft_stack import DraftStack
from specbench.methods._eagle import AnyModel, EagleDrafter
from specbench.types import option

TIE = 1e-9
"""Penalty per level. It makes a child score below its parent, so a kept node's parent is kept."""


class CandidatePool:
    """All candidates of a draft: the root, its `top_k` children, then `top_k` for each beam node.

    Every operation has a fixed shape, and none waits for the device.

    Source: Li et al. 2024, "EAGLE-2", section 4; behaviour checked against SafeAILab/EAGLE,
    model/cnets.py.

    Deviation: confidences are summed in float64. The official code uses the model's precision.
    """

    def __init__(
        self, top_k: int, depth: int, num_nodes: int, dtype: torch.dtype, device: torch.device,
        ops: Ops = TORCH,
    ) -> None:  # fmt: skip
        level_size = top_k * top_k
        num_candidates = 1 + top_k + depth * level_size
        self.top_k = top_k
        self.max_depth = depth + 1
        self.num_nodes = min(num_nodes, num_candidates)
        self.chain = chain_layout(self.num_nodes, device) if top_k == 1 else None
        self._ops = ops
        # Index of each candidate among the children of beam nodes, negative for other candidates.
        below_beams = torch.arange(num_candidates, device=device) - 1 - top_k
        is_below = below_beams >= 0
        self._depths = torch.where(is_below, 2 + below_beams // level_size, 1)
        self._depths[0] = 0
        # Parent of each candidate, as an index among the expanded nodes, root first.
        self._expander = torch.where(is_below, 1 + below_beams // top_k, 0)
        # Index of the first candidate in the level of each expanded node.
        level = torch.arange(-1, depth * top_k, device=device) // top_k  # the root's is -1
        begins = torch.where(level > 0, 1 + top_k + (level - 1) * level_size, 1)
        self._begins = torch.where(level < 0, 0, begins)
        # Additive mask among the nodes of a beam, which do not see each other.
        lowest = torch.finfo(dtype).min
        self._sees_itself = torch.full((top_k, top_k), lowest, dtype=dtype, device=device)
        self._sees_itself.fill_diagonal_(0)
        self._root_score = torch.full((1,), torch.inf, dtype=torch.float64, device=device)
        self._zero = torch.zeros(1, dtype=torch.long, device=device)
        self._penalty = torch.full((1, 1), -TIE, dtype=torch.float64, device=device)

    def start(self, root: Tensor) -> None:
        """Begin a draft with the root's token [1]."""
        self._tokens = [root]
        self._scores = [self._root_score]
        self._expanded: list[Tensor] = []
        self.above = self._penalty  # [beam, 1] the scores of the beam's nodes, minus TIE
        self._mask = self._sees_itself[:1, :0]

    def add(self, log_probs: Tensor, tokens: Tensor) -> None:
        """Add the best children [beam, top_k] of each beam node. The first beam is the root."""
        self.add_scored(log_probs + self.above, tokens)

    def add_scored(self, scores: Tensor, tokens: Tensor) -> None:
        """As `add`, with scores, which are log-probabilities plus `above`."""
        self._scores.append(scores.view(-1))
        self._tokens.append(tokens.view(-1))

    def beam(self) -> Beam:
        """Choose the best nodes of the last level to expand."""
        scores, tokens = self._scores[-1], self._tokens[-1]
        beam = self._ops.beam(scores, tokens, self._mask, self._sees_itself, self._penalty)
        self._expanded.append(beam.nodes)
        self.above, self._mask = beam.above, beam.mask
        return beam

    def grow(self, stack: DraftStack, head: JoinedHead, hidden: Tensor, end: Tensor) -> None:
        """Choose nodes and add their children in all levels, in one call of `head`."""
        _, scores = self._scores  # the scores of the root's children
        _, tokens = self._tokens
        levels = self.max_depth - 1
        scores, tokens, nodes = stack.grow(head, hidden, end, levels, scores, tokens)
        self._scores[1:] = [scores]
        self._tokens[1:] = [tokens]
        self._expanded = [nodes]

    def tree(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens, parents, depths and path log-probabilities of the best candidates, all [nodes].

        They are in the order of insertion. If `top_k` is 1, they form a chain of falling scores.
        """
        tokens = torch.cat(self._tokens)
        scores = torch.cat(self._scores)
        if chain := self.chain:
            n = chain.num_nodes
            return tokens[:n], chain.parents, chain.depths, scores[:n]
        _, best = self._ops.topk(scores, self.num_nodes)
        kept = best.sort().values  # [nodes] indices among the candidates
        # Expanded nodes and parents [nodes], as indices among the candidates.
        expanded = torch.cat([self._zero, *self._expanded]) + self._begins
        parents_of_kept = expanded[self._expander[kept]]
        parents = torch.searchsorted(kept, parents_of_kept)
        parents.clamp_(max=self.num_nodes - 1)  # NaN scores may have left a parent out
        return tokens[kept], parents, self._depths[kept], scores[kept]


class PaperTree(NamedTuple):
    """The number of nodes, including the root, that the papers use for a target.

    EAGLE-2 (Li et al. 2024, section 5). EAGLE-3 keeps these numbers (Li et al. 2025, appendix).
    """

    num_nodes: int
    model: str
    """The paper's target."""
    model_parameters: tuple[float, float]
    """Smallest and largest number of parameters of a target that counts as `model`."""
    below: float
    """A target gets the first tree of `PAPER_TREES` whose `below` exceeds its parameters."""


PAPER_TREES = (
    PaperTree(60, "7B", (6e9, 9e9), below=10e9),
    PaperTree(50, "13B", (12e9, 14e9), below=50e9),
    PaperTree(48, "70B", (65e9, 75e9), below=math.inf),
)


def paper_tree(num_parameters: float) -> PaperTree:
    """The tree of the papers for a target with this many parameters. All experts count."""
    return next(tree for tree in PAPER_TREES if num_parameters < tree.below)


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of a dynamic tree, which has `depth` + 1 levels below the root."""

    total_tokens: int = option(60, "nodes of the tree, including the root", min=2)
    depth: int = option(7, "expansions after the first level", min=0)
    top_k: int = option(10, "nodes expanded per level, and children of each", min=1)
    weights: str = option("", "checkpoint, a folder or hub id")

    def for_target(self, num_parameters: float) -> Self:
        """A copy of the options with the papers' number of nodes for a target of this size."""
        return replace(self, total_tokens=paper_tree(num_parameters).num_nodes)

    def most_nodes(self) -> int:
        return self.total_tokens

    def size_text(self) -> str:
        return f"{self.total_tokens} nodes, {self.depth + 1} levels"

    def paper_note(self, num_parameters: float) -> str:
        """A note such as "as for 13B" if the papers have no target of this size, or else ""."""
        tree = paper_tree(num_parameters)
        least, most = tree.model_parameters
        return "" if least <= num_parameters <= most else f"as for {tree.model}"

    @property
    def official_arguments(self) -> str:
        return f"total_token={self.total_tokens}, depth={self.depth}, top_k={self.top_k}"

    def profiled(self) -> Self:
        """A copy of the options for an acceptance profile, with all candidates in the tree."""
        num_candidates = 1 + self.top_k + self.depth * self.top_k**2
        return replace(self, total_tokens=num_candidates)

    def sized(self, rows: int) -> Self:
        """A copy of the options with a tree of at most `rows` nodes, and a depth to suit."""
        num_nodes = max(2, min(rows, self.total_tokens))
        num_levels = (num_nodes.bit_length() - 1) * 3 // 2  # 1.5 * log2(num_nodes)
        depth = min(self.depth, num_levels - 1)
        top_k = min(self.top_k, max(2, num_nodes // 3))
        return replace(self, total_tokens=num_nodes, depth=depth, top_k=top_k)


class DynamicDrafter(EagleDrafter):
    """The drafter of EAGLE-2 and EAGLE-3. It expands the most confident nodes, level by level.

    `depth` expansions follow the first level, so the tree has up to depth + 1 levels. Draft
    tokens are the draft model's best tokens at every temperature; none is sampled.
    """

    profile = "pool"

    def __init__(self, model: AnyModel, context: BuildContext, options: Options) -> None:
        depth = options.depth
        parts = model.parts
        self._token_ids = parts.token_ids
        draft_vocabulary = parts.head.weight.shape[0]
        top_k = min(options.top_k, draft_vocabulary)
        super().__init__(model, context, num_scratch=(depth + 1) * top_k, depth=depth + 1)
        self._depth = depth
        device = context.target.device
        self._ops = self._execution.ops
        self._pool = CandidatePool(
            top_k, depth, options.total_tokens, model.stack.dtype, device, self._ops
        )
        self.tree_sizes, self.tree_depth = (self._pool.num_nodes,), self._pool.max_depth
        self._grow = self._execution.wrap(self._grown)
        self._joined = self._ops.join_head(parts, top_k)

    def propose(self, state: State) -> DraftTree:
        tokens, parents, depths, log_probs = self._grow(
            *self.draft_inputs(state), cache_span=self.cache_span(state)
        )
        pool = self._pool
        layout = pool.chain or TreeLayout.from_tensors(parents, depths, pool.max_depth)
        return DraftTree(
            tokens, layout, layout.num_nodes, log_probs=log_probs, scores=log_probs[1:]
        )

    def _grown(self, end: Tensor, *missing: Tensor, cache_span: CacheSpan) -> tuple[Tensor, ...]:
        """Draft after the missing pairs. Returns what `CandidatePool.tree` returns."""
        model, pool = self.model, self._pool
        root, hidden = self.feed(end, *missing, cache_span=cache_span)
        pool.start(root)
        pool.add_scored(*self._candidates(hidden))
        if self._joined:
            pool.grow(model.stack, self._joined, hidden, end)
            return pool.tree()
        for slots in model.stack.tree_slots(end, [pool.top_k] * self._depth):
            beam = pool.beam()
            pairs = model.draft_pairs(hidden, beam.tokens, beam.rows)
            hidden = model.stack.extend(*pairs, slots, end, beam.mask, cache_span)
            pool.add_scored(*self._candidates(hidden))
        return pool.tree()

    def bytes_read(self, num_nodes: int) -> float:
        return self.model.bytes_read(self._depth + 1)

    def _candidates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and tokens [n, top_k] of the best children of beam nodes with outputs `hidden`."""
        logits, pool = self.model.logits(hidden), self._pool
        return self._ops.topk_scores(logits, pool.top_k, pool.above, self._token_ids)
