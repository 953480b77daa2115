"""Static trees, whose topology is fixed. A node is a rank among its parent's best tokens."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from specbench.engine.layers.ops import Ops
from specbench.engine.method_options import MethodOptions
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import UserError, unknown_name
from specbench.types import option

TREE_HELP = "a named tree, a shape such as 4x2x1, paths in JSON, or a file of paths"
"""Help of an option `tree`."""
NUM_RANKS = 64
"""Number of ranks that an acceptance profile records at each depth."""
PROFILE_DEPTH = 6
"""Number of depths that an acceptance profile records."""
Ranks = tuple[int, ...]
"""A node, given by the ranks on its path from the root. The root's path is empty."""

TREES: dict[str, tuple[tuple[int, ...], ...]] = {
    "mc_sim_7b_63": (
        (10,),
        (10, 7, 3, 2, 1, 1, 1, 1, 1, 1),
        (10, 3, 2, 1, 1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1),
        (2,),
    ),
    "eagle_25": ((4,), (3, 2, 2, 1), (3, 2, 2, 1), (3,), (2,)),
    "recycling_80": (
        (8,),
        (8, 4, 3, 2, 1, 1, 1, 1),
        (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1),
        (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1),
        (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1),
        (2, 0, 0, 1),
    ),
    "sam_60": (
        (7,),
        (6, 5, 3, 2, 2, 1, 1),
        (3, 2, 2, 1, 1, 0, 3, 2, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1),
        (2, 1, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 1),
        (2, 0, 1, 0, 1),
    ),
}
"""Named trees. A row per depth has the number of children of each node at this depth.

Zeros at the end of a row are left out. `mc_sim_7b_63` is the tree of Medusa and Hydra. EAGLE's
own code gives its tree the same name, but here it is `eagle_25`. `recycling_80` is Token
Recycling's tree "2.2.2". `sam_60` is the tree in SAM-Decoding's copy of Token Recycling.
"""


@dataclass(frozen=True, slots=True)
class TreeOptions(MethodOptions):
    """Options of a method with a static tree."""

    tree: str = option("mc_sim_7b_63", TREE_HELP)
    nodes: int = option(0, "most nodes used, including the root; 0: all", min=0)

    def most_nodes(self) -> int:
        with suppress(OSError, ValueError, TypeError, UserError):  # building the drafter reports it
            num_nodes = 1 + len({*_named_paths(self.tree)})
            return min(num_nodes, self.nodes) if self.nodes else num_nodes
        return 0

    @property
    def alternatives(self) -> frozenset[str]:
        return frozenset({"tree", "nodes"})

    def tree_sha256(self) -> str | None:
        """The hash of the tree's sorted paths, or None if the tree cannot be read.

        Two files with the same paths have the same hash.
        """
        with suppress(OSError, ValueError, TypeError, UserError):  # building the drafter reports it
            paths = sorted({*_named_paths(self.tree)})
            return sha256(json.dumps(paths).encode()).hexdigest()
        return None

    def profiled(self) -> Self:
        """A copy of the options for an acceptance profile, with a chain as deep as a profile."""
        return replace(self, tree="x".join("1" * PROFILE_DEPTH), nodes=0)


def best_ids(ops: Ops, logits: Tensor) -> Tensor:
    """The NUM_RANKS best tokens [n, ranks] of logits [n, vocab]. A small vocabulary has fewer."""
    return ops.topk_ids(logits, min(NUM_RANKS, logits.shape[-1]))


def ranks_of(
    token_ids: Sequence[int], best_by_depth: Iterable[Tensor], num_depths: int
) -> list[int]:
    """The rank of each token among the best [NUM_RANKS] of its depth.

    The rank is NUM_RANKS if the token is not among them, and at depths after the last token.
    """
    ranks = []
    for token, best in zip(token_ids, best_by_depth, strict=False):
        best_ids = best.tolist()
        ranks.append(best_ids.index(token) if token in best_ids else NUM_RANKS)
    return ranks + [NUM_RANKS] * (num_depths - len(ranks))


@dataclass(frozen=True)
class Level:
    """The nodes of one depth. The nodes with children are the level's expanders.

    All tensors except `sees` hold indices.
    """

    source: Tensor  # [nodes] into the tokens [expanders, num_candidates] drafted one level above
    expanders: Tensor  # [expanders] counted from the level's first node
    above: Tensor  # [expanders] the parent of each, counted among the expanders one level above
    sees: Tensor  # [expanders, expanders so far] bool, without the root


@dataclass(frozen=True)
class StaticTree:
    """A tree that is the same in every step. Nodes are ordered by depth, then by path."""

    layout: TreeLayout
    ranks: Tensor  # [nodes] rank among the best tokens after the parent; 0 for the root
    expander: Tensor  # [nodes] the parent of each, counted among all expanders, root first
    levels: tuple[Level, ...]  # from depth 1 on
    num_candidates: int  # number of draft tokens that are needed after an expander

    def filled(
        self, tokens: Tensor, q: Tensor | None = None, scores: Tensor | None = None
    ) -> DraftTree:
        """The draft tree with `tokens` [nodes]."""
        return DraftTree(tokens, self.layout, self.layout.num_nodes, q, scores=scores)

    @classmethod
    def load(
        cls, options: TreeOptions, target: Target, max_depth: int | None = None
    ) -> "StaticTree":
        """Load the tree that the options name, by its name, shape, paths or file of paths.

        Shape "4x2" has four nodes with two children each. Paths are a JSON list of ranks:
        `[[0], [1], [0, 0]]`. Nodes that cannot be filled are left out: ranks that the target's
        vocabulary does not have, and depths beyond `max_depth` (the number of heads). If the option
        `nodes` limits the number of nodes, those with the lowest ranks and depths are kept.

        Raises:
            UserError: the name is unknown, or the text or the file is not such a list.
        """
        try:
            paths = [
                path[:max_depth]
                for path in _named_paths(options.tree)
                if max(path, default=0) < target.vocab_size
            ]
            if options.nodes:
                paths = sorted({*paths}, key=_by_sum)[: options.nodes - 1]
            return cls.from_paths(paths, target.device)
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{options.tree} is not a tree: {error}",
                "Write a JSON list of paths of ranks, such as [[0], [1], [0, 0]].",
            ) from error

    @classmethod
    def from_paths(cls, paths: list[Ranks], device: torch.device) -> "StaticTree":
        """The tree with these `paths`. They must include all parents, except for the root."""
        descendants = sorted(set(paths), key=lambda path: (len(path), path))
        path_of: list[Ranks] = [(), *descendants]  # by node
        node_of = {path: node for node, path in enumerate(path_of)}
        for path in descendants:
            are_ranks = all(isinstance(rank, int) and rank >= 0 for rank in path)
            if path[:-1] not in node_of or not are_ranks:
                raise ValueError(f"path {list(path)} has no parent, or is not a path of ranks")
        if not descendants:
            raise ValueError("it has no nodes")
        parents = [0] + [node_of[path[:-1]] for path in descendants]
        ranks = [0] + [path[-1] for path in descendants if path]
        layout = TreeLayout.from_parents(parents, device)
        expanders = sorted(set(parents))
        return cls(
            layout=layout,
            ranks=torch.tensor(ranks, device=device),
            expander=torch.tensor([expanders.index(node) for node in parents], device=device),
            levels=tuple(_levels(path_of, parents, layout)),
            num_candidates=_num_candidates(path_of),
        )


def _by_sum(path: Ranks) -> tuple[int, Ranks]:
    """The sort key for nodes to keep: depth + ranks. A parent comes before its children."""
    return len(path) + sum(path), path


def _levels(path_of: list[Ranks], parents: list[int], layout: TreeLayout) -> Iterator[Level]:
    """The levels of a tree, from the path and the parent of each node."""
    device = layout.parents.device
    num_candidates = _num_candidates(path_of)
    inner = set(parents)
    above: list[int] = [0]  # expanders of the level above
    visible: list[int] = []  # expanders so far
    for depth in range(1, len(path_of[-1]) + 1):
        nodes = [node for node, path in enumerate(path_of) if len(path) == depth]
        expanders = [node for node in nodes if node in inner]
        visible += expanders
        sources = [
            above.index(parents[node]) * num_candidates + path_of[node][-1] for node in nodes
        ]
        local = [node - nodes[0] for node in expanders]
        parents_above = [above.index(parents[node]) for node in expanders]
        yield Level(
            source=torch.tensor(sources, dtype=torch.long, device=device),
            expanders=torch.tensor(local, dtype=torch.long, device=device),
            above=torch.tensor(parents_above, dtype=torch.long, device=device),
            sees=layout.ancestors[expanders][:, visible],
        )
        above = expanders


def _num_candidates(path_of: list[Ranks]) -> int:
    """Draft tokens needed after an expander: one more than the largest rank."""
    return 1 + max(path[-1] for path in path_of if path)


def _named_paths(name: str) -> list[Ranks]:
    """The paths of a named tree, of a shape such as 4x2x1, or of JSON in `name` or in a file."""
    if name in TREES:
        return _counted_paths(TREES[name])
    if re.fullmatch(r"[1-9]\d?(x[1-9]\d?)*", name):
        widths = [int(width) for width in name.split("x")]
        rows = [(width,) * math.prod(widths[:depth]) for depth, width in enumerate(widths)]
        return _counted_paths(rows)
    is_file = name.endswith(".json")
    if is_file or name.startswith("["):
        try:
            text = Path(name).read_text("utf-8") if is_file else name
            return [tuple(path) for path in json.loads(text)]
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
    raise unknown_name("tree", name, TREES, "Or give a shape like 4x2x1, paths, or a .json file.")


def _counted_paths(rows: Sequence[tuple[int, ...]]) -> list[Ranks]:
    """The paths of a tree whose rows count the children of each node (see `TREES`)."""
    paths: list[Ranks] = []
    level: list[Ranks] = [()]
    for row in rows:
        level = [
            (*path, rank)
            for path, num_children in zip(level, row, strict=False)
            for rank in range(num_children)
        ]
        paths += level
    return paths
