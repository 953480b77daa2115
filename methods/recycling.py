"""Token Recycling: a static tree is drafted from a table of each token's latest best successors."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specbench.engine.drafter import BuildContext, Drafter, Method, State, StepResult
from specbench.engine.target import Forward, Needs, Target
from specbench.engine.tree import DraftTree
from specbench.methods.shared.static_tree import TREE_HELP, StaticTree, TreeOptions
from specbench.types import option

ROWS = 128
"""Number of the prompt's positions whose logits are in memory at once."""


@dataclass(frozen=True, slots=True)
class Options(TreeOptions):
    """Options of Token Recycling."""

    tree: str = option("recycling_80", TREE_HELP)
    prompt: bool = option(False, "also fill the table with the prompt's logits")
    scope: Literal["request", "run"] = option(
        "request", "run: keep the table from prompt to prompt"
    )


class Table:
    """The target's best tokens [vocab, candidates] after each token. Trees are drafted from them.

    A row that was never written holds the tokens 0, 1, 2 and so on. If a token occurs at several
    nodes of a step, its last node counts.
    """

    def __init__(self, tree: StaticTree, target: Target) -> None:
        self._width = tree.num_candidates
        self._ops = target.execution.ops
        sizes = torch.bincount(tree.layout.depths)[1:].tolist()  # nodes per level
        self._parents = tree.layout.parents[1:].split(sizes)
        self._ranks = tree.ranks[1:].split(sizes)
        self._unknown = torch.arange(self._width, device=target.device)
        self._rows = self._unknown.repeat(target.vocab_size, 1)
        self._kept_rows = self._rows.clone()

    def start(self) -> None:
        """Begin a sequence with the rows that are kept from prompt to prompt."""
        self._rows.copy_(self._kept_rows)

    def keep(self) -> None:
        """Keep the present rows, so that later sequences begin with them."""
        self._kept_rows.copy_(self._rows)

    def forget(self) -> None:
        """Keep no rows, so that later sequences begin with rows that were never written."""
        self._kept_rows.copy_(self._unknown)

    def fill(self, root: Tensor) -> tuple[Tensor, ...]:
        """Tokens [nodes] of the tree below `root` [1]."""
        tokens = root
        successors = self._rows.view(-1)
        for parents, ranks in zip(self._parents, self._ranks, strict=True):
            indices = tokens.index_select(0, parents) * self._width + ranks
            tokens = torch.cat([tokens, successors.index_select(0, indices)])
        return (tokens,)

    def learn(self, tokens: Tensor, logits: Tensor, num_nodes: Tensor) -> tuple[Tensor, ...]:
        """Write the best tokens of `logits` [nodes, vocab] to the rows of `tokens` [nodes].

        Nodes from `num_nodes` [1] on are padding.
        """
        best = self._ops.topk_ids(logits, self._width)
        nodes = torch.arange(tokens.shape[0], device=tokens.device)
        is_node = nodes < num_nodes  # the rest is padding
        tokens = torch.where(is_node, tokens, tokens[:1])
        has_token = (tokens[:, None] == tokens) & is_node  # [nodes, nodes]
        last_node = torch.where(has_token, nodes, 0).amax(-1)  # the last node with the same token
        self._rows.index_copy_(0, tokens, best.index_select(0, last_node))
        return (best,)


class HostTable(Table):
    """The same table as lists, because a dozen small tensor operations start slowly on a CPU."""

    def __init__(self, tree: StaticTree, target: Target) -> None:
        self._width = tree.num_candidates
        self._ops = target.execution.ops
        parents = tree.layout.parents[1:].tolist()
        ranks = tree.ranks[1:].tolist()
        self._nodes = [*zip(parents, ranks, strict=True)]
        self._best: dict[int, list[int]] = {}
        self._kept: dict[int, list[int]] = {}

    def start(self) -> None:
        self._best = dict(self._kept)

    def keep(self) -> None:
        self._kept = dict(self._best)

    def forget(self) -> None:
        self._kept = {}

    def fill(self, root: Tensor) -> tuple[Tensor, ...]:
        tokens = root.tolist()
        for parent, rank in self._nodes:
            row = self._best.get(tokens[parent])
            tokens.append(row[rank] if row else rank)
        return (torch.tensor(tokens),)

    def learn(self, tokens: Tensor, logits: Tensor, num_nodes: Tensor) -> tuple[Tensor, ...]:
        best = self._ops.topk_ids(logits, self._width)
        learned = tokens[: int(num_nodes)].tolist()
        self._best.update(zip(learned, best.tolist(), strict=False))
        return (best,)


class Recycling(Drafter):
    """Keeps a table of the target's best tokens after each token.

    A node of the tree is a rank in its parent token's row. After each step, the target's best
    tokens at every node replace the row of the node's token, even if the node was not accepted.

    Source: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language
    Models with Token Recycling"; behaviour checked against Spec-Bench's inference_recycling.py.

    Deviation: the official table starts with zeros, which repeat one token below a node. Here a
    row starts with the tokens 0, 1, 2 and so on. The official code keeps the table from prompt to
    prompt, which is `scope=run` here.
    """

    def __init__(self, options: Options, context: BuildContext) -> None:
        target = context.target
        tree = StaticTree.load(options, target)
        self._tree = tree
        self._device = target.device
        self.tree_sizes, self.tree_depth = (tree.layout.num_nodes,), tree.layout.max_depth
        is_on_host = target.device.type == "cpu" and not target.execution.is_static
        self._table = (HostTable if is_on_host else Table)(tree, target)
        if options.prompt:
            self.needs = Needs(hidden=True, all_prompt_positions=True)
        self._head = target.model.get_output_embeddings()
        self._ops = target.execution.ops
        self._fill = target.execution.wrap(self._table.fill)
        self._learn = self._table.learn
        if not context.skipped_depth:  # otherwise steps have too many sizes to capture in time
            self._learn = target.execution.wrap(self._table.learn)

    def start(self, state: State, prefill: Forward) -> None:
        """Begin with the kept rows; learn from the prompt's logits if the options ask for it."""
        self._table.start()
        if prefill.hidden is None:
            return
        prompt = torch.tensor(state.request.prompt_ids, device=self._device)
        hidden_states = prefill.hidden[: len(prompt)]  # without padding
        chunks = zip(prompt.split(ROWS), hidden_states.split(ROWS), strict=True)
        for tokens, hidden in chunks:
            logits = self._ops.project(hidden, self._head.weight, self._head.bias)
            num_tokens = torch.full_like(tokens[:1], len(tokens))
            self._table.learn(tokens, logits, num_tokens)

    def propose(self, state: State) -> DraftTree:
        root = torch.full((1,), state.pending, device=self._device)
        (tokens,) = self._fill(root)
        return self._tree.filled(tokens)

    def observe(self, state: State, result: StepResult) -> None:
        tree = result.tree
        num_nodes = torch.full((1,), int(tree.num_verify), device=self._device)
        self._learn(tree.tokens, result.forward.logits, num_nodes)

    def remember(self) -> None:
        self._table.keep()

    def forget(self) -> None:
        self._table.forget()


METHOD = Method(
    name="recycling",
    title="Recycling",
    summary="Token Recycling: drafts a tree from a table of each token's latest best successors",
    paper="Luo et al. 2024, Token Recycling",
    options=Options,
    build=Recycling,
    colour="#D67C1F",
    slow_on_cpu="a tree small enough to be cheap here holds few of its table's tokens",
)
