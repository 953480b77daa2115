"""Token Recycling: a table of every token's latest best successors is drafted as a static tree."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from specbench.engine.drafter import BuildContext, Drafter, Method, State, StepResult
from specbench.engine.target import Forward, Needs
from specbench.engine.tree import DraftTree
from specbench.methods._static_tree import TREE, StaticTree, TreeOptions

ROWS = 128
"""Positions of the prompt whose logits are held at once."""


@dataclass(frozen=True, slots=True)
class Options(TreeOptions):
    """Options of Token Recycling."""

    tree: str = field(default="recycling_80", metadata=TREE)
    prompt: bool = field(
        default=False, metadata={"help": "also fill the table with the prompt's logits"}
    )
    scope: Literal["request", "run"] = field(
        default="request", metadata={"help": "run: keep the table from prompt to prompt"}
    )


class Recycling(Drafter):
    """Keeps a table [vocab, candidates] of the target's best tokens after each token.

    A node of the tree is a rank in its parent token's row. After each step, the target's best
    tokens at every node, accepted or not, replace the row of the node's token. If a token
    occurs at several nodes, the last one counts.

    Source: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language
    Models with Token Recycling"; behaviour checked against Spec-Bench's inference_recycling.py.

    Deviation: the official table starts with zeros, which repeat one token below a node; here a
    row starts with the tokens 0, 1, 2 and so on. The official code keeps the table from prompt to
    prompt, which is `scope=run` here.
    """

    def __init__(self, options: Options, context: BuildContext) -> None:
        target = context.target
        tree = StaticTree.load(options, target)
        self._tree, self._width = tree, tree.num_candidates
        self.tree_sizes = (tree.num_nodes,)
        parents = tree.layout.parents
        sizes = torch.bincount(tree.layout.depths)[1:].tolist()
        self._above = parents[1:].split(sizes)
        self._ranks = tree.ranks[1:].split(sizes)
        self._unknown = torch.arange(self._width, device=target.device)
        self._table = self._unknown.repeat(target.vocab_size, 1)
        self._first = self._table.clone()
        if options.prompt:
            self.needs = Needs(hidden=True, all_prompt_positions=True)
        self._head, self._ops = target.model.get_output_embeddings(), target.execution.ops
        self._fill = target.execution.wrap(self._filled)
        self._learn = self._learned
        if not context.skipped_depth:  # steps of many sizes would be captured late
            self._learn = target.execution.wrap(self._learned)

    def start(self, state: State, prefill: Forward) -> None:
        self._table.copy_(self._first)
        if prefill.hidden is None:
            return
        prompt = torch.tensor(state.request.prompt_ids, device=self._table.device)
        for tokens, hidden in zip(prompt.split(ROWS), prefill.hidden.split(ROWS), strict=True):
            logits = self._ops.project(hidden, self._head.weight, self._head.bias)
            self._learned(tokens, logits, torch.full_like(tokens[:1], len(tokens)))

    def propose(self, state: State) -> DraftTree:
        root = torch.full((1,), state.pending, device=self._table.device)
        (tokens,) = self._fill(root)
        return DraftTree(tokens, self._tree.layout, self._tree.num_nodes)

    def _filled(self, root: Tensor) -> tuple[Tensor, ...]:
        """Tokens [nodes] of the tree below `root` [1]."""
        tokens, entries = root, self._table.view(-1)
        for above, ranks in zip(self._above, self._ranks, strict=True):
            places = tokens.index_select(0, above) * self._width + ranks
            tokens = torch.cat([tokens, entries.index_select(0, places)])
        return (tokens,)

    def observe(self, state: State, result: StepResult) -> None:
        tree = result.tree
        num_nodes = torch.full((1,), int(tree.num_verify), device=self._table.device)
        self._learn(tree.tokens, result.forward.logits, num_nodes)

    def _learned(self, tokens: Tensor, logits: Tensor, num_nodes: Tensor) -> tuple[Tensor, ...]:
        """Write the best tokens of `logits` [nodes, vocab] to the rows of `tokens` [nodes].

        Nodes from `num_nodes` [1] on are padding.
        """
        best = self._ops.topk_ids(logits, self._width)
        nodes = torch.arange(tokens.shape[0], device=tokens.device)
        tokens = torch.where(nodes < num_nodes, tokens, tokens[:1])
        is_same = (tokens[:, None] == tokens) & (nodes < num_nodes)
        last = torch.where(is_same, nodes, 0).amax(-1)
        self._table.index_copy_(0, tokens, best.index_select(0, last))
        return (best,)

    def remember(self) -> None:
        self._first.copy_(self._table)

    def forget(self) -> None:
        self._first.copy_(self._unknown)


METHOD = Method(
    name="recycling",
    title="Recycling",
    summary="Token Recycling: drafts a tree from a table of each token's latest best successors",
    paper="Luo et al. 2024, Token Recycling",
    options=Options,
    build=Recycling,
    colour="#D67C1F",
)
