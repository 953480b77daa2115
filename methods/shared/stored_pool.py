"""Store all candidates of a dynamic tree at one position, and grow smaller trees from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.engine.layers.operands import Beam
from specbench.engine.layers.ops import TORCH, Ops
from specbench.engine.tree import DraftTree
from specbench.methods._dynamic_tree import TIE, CandidatePool


class StoredPool(NamedTuple):
    """The children of every expanded node: of the root, then of the beam nodes of each level."""

    token_ids: NDArray[np.integer[Any]]  # [expanded, top_k]
    log_probs: NDArray[np.float32]  # [expanded, top_k]
    nodes: NDArray[np.uint16]  # [expanded - 1] index of each beam node among all children

    @classmethod
    def read(cls, tree: DraftTree) -> StoredPool:
        """The pool of a tree that holds all candidates, in the order of insertion."""
        assert tree.log_probs is not None
        parents = tree.layout.parents.cpu().numpy()
        tokens = tree.tokens.cpu().numpy()
        scores = tree.log_probs.cpu().numpy()
        top_k = int((parents[1:] == 0).sum())
        expanded = parents[1::top_k]  # the parent of every `top_k` children
        # A child's score is its log-probability plus its parent's score minus TIE.
        above = np.where(expanded > 0, scores[expanded], 0.0) - TIE
        log_probs = scores[1:].reshape(-1, top_k) - above[:, None]
        smallest_type = np.min_scalar_type(tokens.max())
        return cls(
            token_ids=tokens[1:].reshape(-1, top_k).astype(smallest_type),
            log_probs=log_probs.astype(np.float32),
            nodes=(expanded[1:] - 1).astype(np.uint16),
        )

    def rows(self) -> dict[tuple[int, ...], int]:
        """The row of each expanded node's children. The key is the tokens on the node's path."""
        paths: list[tuple[int, ...]] = [()]
        tokens = self.token_ids.ravel().tolist()
        top_k = self.token_ids.shape[1]
        for node in self.nodes.tolist():
            paths.append((*paths[node // top_k], tokens[node]))
        return {path: row for row, path in enumerate(paths)}

    def depth_of(self, token_ids: Sequence[int]) -> int:
        """Length of the longest prefix of `token_ids` that is a path in the pool."""
        rows, path = self.rows(), tuple(token_ids)
        for depth, token in enumerate(path):
            row = rows.get(path[:depth])
            if row is None or token not in self.token_ids[row]:
                return depth
        return len(path)


class _FirstOfEquals(Ops):
    """Operations whose `topk` prefers the first of equal values."""

    def topk(self, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
        best = values.sort(descending=True, stable=True)
        return best.values[:k], best.indices[:k]


class HostPool(CandidatePool):
    """A pool on the CPU that takes stored candidates.

    If scores are equal, it expands the first, as a draft on a CPU does.
    """

    _ops: Ops

    def __init__(self, num_nodes: int, depth: int, top_k: int) -> None:
        super().__init__(top_k, depth, num_nodes, torch.float32, torch.device("cpu"))

    def beam(self) -> Beam:
        self._ops = _FirstOfEquals()
        try:
            return super().beam()
        finally:
            self._ops = TORCH


class SmallTree(NamedTuple):
    """The tokens and parents [nodes] of a tree, and how many nodes were expanded."""

    tokens: list[int]
    parents: list[int]
    num_expanded: int
    num_missed: int
    """Number of expanded nodes whose children the stored pool lacks."""


def smaller_tree(stored: StoredPool, pool: HostPool, depth: int) -> SmallTree:
    """The tree that `pool` grows from stored candidates in `depth` expansions.

    A narrower beam may expand a node that was pushed out of the wider beam. The children of such a
    node are unknown. They get the token -1 and no probability.
    """
    rows = stored.rows()
    top_k = pool.top_k
    num_missed = 0
    token_ids = torch.from_numpy(stored.token_ids[:, :top_k].astype(np.int64))
    log_probs = torch.from_numpy(stored.log_probs[:, :top_k].copy())
    pool.start(torch.zeros(1, dtype=torch.long))
    pool.add(log_probs[:1], token_ids[:1])
    beam_paths: list[tuple[int, ...] | None] = [()]  # None: its children are unknown
    for _ in range(depth):
        beam = pool.beam()
        paths: list[tuple[int, ...] | None] = []
        stored_rows = []  # -1: its children are unknown
        for parent, token in zip(beam.rows.tolist(), beam.tokens.tolist(), strict=True):
            parent_path = beam_paths[parent]
            path = None if parent_path is None else (*parent_path, token)
            row = -1 if path is None else rows.get(path, -1)
            if path is not None and row < 0:
                num_missed += 1
            paths.append(path if row >= 0 else None)
            stored_rows.append(row)
        beam_paths = paths
        row_ids = torch.tensor(stored_rows)
        is_unknown = (row_ids < 0)[:, None]
        pool.add(
            log_probs[row_ids].masked_fill(is_unknown, -torch.inf),
            token_ids[row_ids].masked_fill(is_unknown, -1),
        )
    tokens, parents, _, _ = pool.tree()
    return SmallTree(tokens.tolist(), parents.tolist(), 1 + depth * top_k, num_missed)
