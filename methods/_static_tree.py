"""Static trees: a topology chosen beforehand, whose nodes are ranks among their parent's guesses.

Knows paths of ranks. Knows nothing of heads or tokens.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specbench.engine.tree import TreeLayout
from specbench.errors import UserError, unknown_name

Ranks = tuple[int, ...]
"""A node as the ranks on the way to it from the root, whose own path is empty."""

TREES: dict[str, tuple[Ranks, ...]] = {
    "mc_sim_7b_63": (
        (10,),
        (10, 7, 3, 2, 1, 1, 1, 1, 1, 1),
        (10, 3, 2, 1, 1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1),
        (2,),
    ),
    "eagle_25": (
        (4,),
        (3, 2, 2, 1),
        (3, 2, 2, 1),
        (3,),
        (2,),
    ),
}
"""The named trees: a row for each depth, with the number of children of each node of that depth.

Nodes at a row's end that have none are left out. `mc_sim_7b_63` is the tree of Medusa and Hydra.
EAGLE's is called by that same name in its code, and `eagle_25` here.
"""


@dataclass(frozen=True)
class Level:
    """The nodes of one depth, and those of them that have children, the level's expanders.

    Tensors hold indices; "local" ones count from the level's first node.
    """

    source: Tensor  # [nodes] place of each token in the guesses above [expanders, num_candidates]
    expanders: Tensor  # [expanders] local
    above: Tensor  # [expanders] which expander of the level above each hangs below
    sees: Tensor  # [expanders, expanders so far] bool, the root left out


@dataclass(frozen=True)
class StaticTree:
    """A tree that is the same in every step. Nodes lie by depth, then by rank on their path."""

    layout: TreeLayout
    ranks: Tensor  # [nodes] each node's rank among the guesses behind its parent; the root's is 0
    expander: Tensor  # [nodes] each node's parent, counted among all expanders, root first
    levels: tuple[Level, ...]  # depth 1 and on
    num_candidates: int  # guesses needed behind an expander

    @property
    def num_nodes(self) -> int:
        return self.layout.num_nodes

    @classmethod
    def load(
        cls, name: str, device: torch.device, *, max_rank: int, max_depth: int | None = None
    ) -> "StaticTree":
        """The tree of that name, of that shape ("4x2": two children below each of four), or of
        that JSON file, which lists the paths of ranks: `[[0], [1], [0, 0]]`.

        Nodes that cannot be filled are left out: from `max_rank` on (the vocabulary), or deeper
        than `max_depth` (the heads there are).

        Raises:
            UserError: there is none of that name, or the file is no such list.
        """
        try:
            paths = [path for path in _named_paths(name) if all(rank < max_rank for rank in path)]
            return cls.from_paths([path[:max_depth] for path in paths], device)
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{name} is no tree: {error}",
                "Write a JSON list of paths of ranks, such as [[0], [1], [0, 0]].",
            ) from error

    @classmethod
    def from_paths(cls, paths: list[Ranks], device: torch.device) -> "StaticTree":
        """The tree of these nodes, the root left out; every node's parent has to be among them."""
        ordered: list[Ranks] = [(), *sorted(set(paths), key=lambda path: (len(path), path))]
        places = {path: node for node, path in enumerate(ordered)}
        for path in ordered[1:]:
            if path[:-1] not in places or not all(isinstance(r, int) and r >= 0 for r in path):
                raise ValueError(f"path {list(path)} has no parent, or is no path of ranks")
        if len(ordered) < 2:
            raise ValueError("it has no node")
        parents = [0, *(places[path[:-1]] for path in ordered[1:])]
        layout = TreeLayout.from_parents(parents, device)
        expanders = sorted(set(parents))
        expander = [expanders.index(parent) for parent in parents]
        return cls(
            layout,
            torch.tensor([path[-1] if path else 0 for path in ordered], device=device),
            torch.tensor(expander, device=device),
            tuple(_levels(ordered, parents, layout)),
            _width(ordered),
        )


def _levels(paths: list[Ranks], parents: list[int], layout: TreeLayout) -> Iterator[Level]:
    width = _width(paths)
    inner = set(parents)
    above: list[int] = [0]
    seen: list[int] = []
    for depth in range(1, len(paths[-1]) + 1):
        nodes = [node for node, path in enumerate(paths) if len(path) == depth]
        expanders = [node for node in nodes if node in inner]
        seen += expanders
        columns = (
            [above.index(parents[node]) * width + paths[node][-1] for node in nodes],
            [node - nodes[0] for node in expanders],
            [above.index(parents[node]) for node in expanders],
        )
        source, local, rows = (
            torch.tensor(column, dtype=torch.long, device=layout.parents.device)
            for column in columns
        )
        yield Level(source, local, rows, layout.ancestors[expanders][:, seen])
        above = expanders


def _width(paths: list[Ranks]) -> int:
    return 1 + max(path[-1] for path in paths if path)


def _named_paths(name: str) -> list[Ranks]:
    if name in TREES:
        return _counted_paths(TREES[name])
    if re.fullmatch(r"[1-9]\d?(x[1-9]\d?)*", name):
        widths = [int(width) for width in name.split("x")]
        return _counted_paths(
            tuple((width,) * math.prod(widths[:depth]) for depth, width in enumerate(widths))
        )
    if name.endswith(".json"):
        return [tuple(path) for path in json.loads(Path(name).read_text("utf-8"))]
    raise unknown_name("tree", name, TREES, "Or give a shape like 4x2x1, or a .json file.")


def _counted_paths(rows: tuple[Ranks, ...]) -> list[Ranks]:
    paths: list[Ranks] = []
    level: list[Ranks] = [()]
    for row in rows:
        level = [
            (*path, rank) for path, count in zip(level, row, strict=False) for rank in range(count)
        ]
        paths += level
    return paths
