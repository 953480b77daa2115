"""The draft tree, which is a tree of draft tokens below the pending token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.engine.layers.operands import additive as additive

NUM_NODES = (1, 4, 8, 16, 32, 48, 64, 96, 128, 160)
"""The numbers of nodes to which trees of changing size are padded with captured graphs.

Each size has its own graphs. A GPU multiplies 16 rows at once, so more sizes would save little.
"""

PROMPT_SIZES = (*(size for size in NUM_NODES if size >= 16), 192, 256)
"""The numbers of tokens to which prompts are padded with captured graphs.

Longer prompts are not padded. With them, the GPU is the bottleneck and not the host, so a graph
would save little.
"""


def padded_size(num_nodes: int) -> int:
    """Number of nodes that a tree of `num_nodes` nodes is padded to."""
    return next((size for size in NUM_NODES if size >= num_nodes), num_nodes)


@dataclass(frozen=True)
class TreeLayout:
    """The topology of a tree, without its tokens. Node 0 is the root. Parents precede children.

    Static layouts are built once and reused. Dynamic layouts come from `from_tensors`, which
    neither loops over nodes nor waits for the device.
    """

    parents: Tensor  # [nodes] int64; the root's parent is itself
    depths: Tensor  # [nodes] int64; the root's is 0
    ancestors: Tensor  # [nodes, nodes] bool; row i marks node i and its ancestors
    max_depth: int  # upper bound of the depths
    is_chain: bool = False  # if True, every path consists of the first nodes, in order
    known_siblings: Tensor | None = None  # `siblings`, if it must not be computed on the host

    @property
    def num_nodes(self) -> int:
        return self.parents.shape[0]

    @property
    def padded_path_length(self) -> int:
        """Number of nodes that a path is padded to."""
        return min(self.num_nodes, padded_path_length(self.max_depth))

    @classmethod
    def from_parents(cls, parents: Sequence[int], device: torch.device | str) -> TreeLayout:
        """Make a layout from indices on the host. `parents[0]` must be 0, the root's own index."""
        if not parents or parents[0] != 0:
            raise ValueError("the first node of a tree is its root, whose parent must be 0")
        depths = [0]
        bits = [1]  # for each node, bit i is set if node i is the node itself or its ancestor
        for node, parent in enumerate(parents[1:], start=1):
            if not 0 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; parents must precede children")
            depths.append(depths[parent] + 1)
            bits.append(bits[parent] | 1 << node)
        n = len(parents)
        max_depth = max(depths)
        ancestors = [[bool(row >> i & 1) for i in range(n)] for row in bits]
        return cls(
            torch.tensor(parents, device=device),
            torch.tensor(depths, device=device),
            torch.tensor(ancestors, device=device),
            max_depth,
            is_chain=max_depth == n - 1,
        )

    @classmethod
    def from_tensors(cls, parents: Tensor, depths: Tensor, max_depth: int) -> TreeLayout:
        """Make a layout from tensors [nodes] on the device. `max_depth` bounds the depths."""
        ancestors = torch.eye(parents.shape[0], dtype=torch.bool, device=parents.device)
        ancestors[:, 0] = True
        above = parents
        for _ in range(max(max_depth - 1, 0).bit_length()):  # each round doubles the distance
            ancestors = ancestors | ancestors.index_select(0, above)
            above = above.index_select(0, above)
        return cls(parents, depths, ancestors, max_depth)

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Additive mask [nodes, nodes]: 0 where a node attends, the lowest number elsewhere."""
        biases: dict[torch.dtype, Tensor] = self.__dict__.setdefault("_biases", {})
        if dtype not in biases:
            biases[dtype] = additive(self.ancestors, dtype)
        return biases[dtype]

    def padded(self, num_nodes: int) -> TreeLayout:
        """The same tree, padded to `num_nodes` with nodes that are their own parents."""
        layouts: dict[int, TreeLayout] = self.__dict__.setdefault("_padded", {})
        if num_nodes not in layouts:
            num_more = num_nodes - self.num_nodes
            added = torch.arange(self.num_nodes, num_nodes, device=self.parents.device)
            ancestors = pad(self.ancestors, (0, num_more, 0, num_more))
            ancestors.diagonal().fill_(True)
            parents = torch.cat([self.parents, added])
            depths = pad(self.depths, (0, num_more))
            layouts[num_nodes] = replace(self, parents=parents, depths=depths, ancestors=ancestors)
        return layouts[num_nodes]

    @cached_property
    def siblings(self) -> Tensor:
        """[max_siblings, nodes] int64. Row r holds the r-th child of each node, or 0 without one.

        For example, parents [0, 0, 0, 1] are a root with the children 1 and 2, and node 3 below
        node 1. The result is [[1, 3, 0, 0], [2, 0, 0, 0]].
        """
        if self.known_siblings is not None:
            return self.known_siblings
        parents = self.parents.tolist()
        rows: list[list[int]] = []
        num_children = [0] * len(parents)
        for node, parent in enumerate(parents[1:], start=1):
            rank = num_children[parent]
            num_children[parent] += 1
            if rank == len(rows):
                rows.append([0] * len(parents))
            rows[rank][parent] = node
        siblings = torch.tensor(rows, device=self.parents.device)
        return siblings.view(len(rows), len(parents))  # without rows, it has one dimension


def padded_path_length(max_depth: int) -> int:
    """Number of nodes to which a path is padded in a tree of this depth. There are few sizes."""
    return max(16, 1 << max_depth.bit_length())


@cache
def chain_layout(num_nodes: int, device: torch.device) -> TreeLayout:
    """The layout of a chain, in which every node is the child of the node before it."""
    return TreeLayout.from_parents([max(i - 1, 0) for i in range(num_nodes)], device)


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens below the pending token.

    Node 0 is the pending token: emitted, but not in the target's cache yet. The first
    `num_verify` nodes may be accepted. The others are scratch nodes: the target computes them
    and the drafter observes them, but they are never accepted. Siblings carry distinct tokens.

    `q` [nodes, vocab] holds the distribution that each node was drawn from, given that its earlier
    siblings were rejected (row 0 is unused). If it is None, draft tokens are deterministic, so each
    was drawn from a point mass. `log_probs` [nodes] are the drafter's log-probabilities of the path
    to each node (row 0 is unused). They may be missing, and serve only reports. `scores` are
    values of the draft model, of any shape, that serve only as a check: if one of them is NaN or
    positive infinity, the step fails.
    """

    tokens: Tensor  # [nodes] int64
    layout: TreeLayout
    num_verify: int | Tensor
    q: Tensor | None = None
    log_probs: Tensor | None = None
    scores: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        return self.layout.num_nodes

    def padded(self, num_nodes: int) -> DraftTree:
        """The same tree, padded with scratch nodes to `num_nodes`."""
        num_more = num_nodes - self.num_nodes
        if num_more == 0:
            return self
        tokens = pad(self.tokens, (0, num_more))
        layout = self.layout.padded(num_nodes)
        q = None if self.q is None else pad(self.q, (0, 0, 0, num_more))
        return DraftTree(tokens, layout, self.num_verify, q, scores=self.scores)

    @classmethod
    def star(cls, num_nodes: int, device: torch.device, max_depth: int = 1) -> DraftTree:
        """A root with `num_nodes` - 1 children, which all have the same token.

        `max_depth` becomes the layout's bound of the depths, although the real depth is 1.
        """
        layout = TreeLayout.from_parents([0] * num_nodes, device)
        tokens = torch.zeros(num_nodes, dtype=torch.long, device=device)
        return cls(tokens, replace(layout, max_depth=max_depth), num_nodes)

    @classmethod
    def chain(
        cls, tokens: Tensor, q: Tensor | None = None, scores: Tensor | None = None
    ) -> DraftTree:
        """A chain of `tokens` [nodes]: the pending token, then draft tokens."""
        n = tokens.shape[0]
        return cls(tokens, chain_layout(n, tokens.device), n, q, scores=scores)


class RuleInputs(NamedTuple):
    """The tensors of a tree that an acceptance rule reads, apart from its tokens and depths."""

    tensors: tuple[Tensor, ...]
    """Parents, ancestors, `num_verify`, then the optional tensors in the order of `names`."""
    names: tuple[str, ...]
    """Names of the optional tensors that are present: q with siblings, and scores."""

    @classmethod
    def of(cls, tree: DraftTree) -> RuleInputs:
        layout, num_verify = tree.layout, tree.num_verify
        if not isinstance(num_verify, Tensor):
            num_verify = _on_device(num_verify, tree.tokens.device)
        siblings = None if tree.q is None else layout.siblings
        optional = {"q": tree.q, "siblings": siblings, "scores": tree.scores}
        present = {name: tensor for name, tensor in optional.items() if tensor is not None}
        tensors = (layout.parents, layout.ancestors, num_verify, *present.values())
        return cls(tensors, tuple(present))


@cache
def _on_device(number: int, device: torch.device) -> Tensor:
    """A number as a tensor []. The same object is returned each time, so it is copied only once."""
    return torch.full((), number, device=device)  # filled on the device: a copy would wait
