"""Pools: all candidates of a dynamic tree, from which smaller trees can be grown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from specbench.engine.drafter import Drafter, State
from specbench.methods.shared.stored_pool import HostPool, StoredPool, smaller_tree
from specbench.settings import grids
from specbench.settings.run_method import RunMethod
from specbench.tune.drafts import Draft, DraftAt, Outcome, num_accepted
from specbench.tune.kind import Kind, SizedDraft
from specbench.tune.profile_file import Answer, Arrays, Profile
from specbench.tune.recorder import Recorder


def num_candidates(depth: int, top_k: int) -> int:
    """Count the candidates of a dynamic tree: the root, its children, and all children of beams."""
    return 1 + top_k + depth * top_k**2


class PoolRecorder(Recorder):
    """Keeps the pool of each draft."""

    def __init__(self, drafter: Drafter, answer: Sequence[int]) -> None:
        super().__init__(drafter, answer)
        self._pools: list[StoredPool] = []

    def record(self, state: State, following: Sequence[int]) -> None:
        tree = self.drafter.propose(state)
        self._pools.append(StoredPool.read(tree))

    @property
    def arrays(self) -> Arrays:
        if not self._pools:
            return {}
        return {
            name: np.stack([getattr(pool, name) for pool in self._pools])
            for name in StoredPool._fields
        }


class PoolKind(Kind):
    """Dynamic trees. The method's own pool grows any smaller tree from the recorded candidates."""

    name = "pool"
    array_names = StoredPool._fields
    free_options = ("total_tokens", "depth", "top_k")
    bounded_options = ("depth", "top_k")
    has_candidates = True

    def record(self, drafter: Drafter, answer: Sequence[int]) -> Recorder:
        return PoolRecorder(drafter, answer)

    def replay(self, profile: Profile, label: str, method: RunMethod) -> DraftAt:
        """Make a function that returns a setting's tree at a position of a stored answer.

        Args:
            profile: not used here; its answers have the recorded candidates.
            label: the method as it was profiled.
            method: the method with the options of the setting: `total_tokens` (most nodes),
                `depth`, `top_k`.
        """
        options = method.options
        # Returns the pool for trees of a size (nodes, depth, top-k), which is made once.
        pool_of_size = cache(HostPool)

        def draft_at(answer: Answer, position: int, wanted_length: int | None) -> Draft:
            """Return the tree after `position` tokens of an answer, with its accepted tokens.

            The draft also has the number of expansions, and of those that were not recorded. An
            expansion is a node whose children were drafted, even if they are not in the tree.
            `wanted_length` is only for chains.
            """
            stored = _stored_pool(answer, label, position)  # all candidates at this position
            # at most the recorded top-k: `token_ids` are [expanded nodes, top-k]
            top_k = min(options.top_k, stored.token_ids.shape[-1])
            pool = pool_of_size(options.total_tokens, options.depth, top_k)
            tree = smaller_tree(stored, pool, options.depth)
            num_right = num_accepted(tree.tokens, tree.parents, answer.token_ids[position:])
            return Draft(
                num_nodes=len(tree.tokens),
                outcomes=[Outcome(num_right)],  # the only possible one
                num_expanded=tree.num_expanded,
                num_missed=tree.num_missed,
            )

        return draft_at

    def sizes(self, options: Any, drafter: Drafter) -> Iterator[SizedDraft]:
        """Yield the sizes of trees to time: up to three depths, each with several top-k."""
        # The time of a draft grows with the depth, but the first levels may differ.
        depths = sorted({0, min(2, options.depth), options.depth})
        top_ks = grids.up_to(options.top_k, grids.TIMED_TOP_K)
        for depth, top_k in product(depths, top_ks):
            size = min(grids.TIMED_POOL_ROWS, num_candidates(depth, top_k))
            knot = {"depth": depth, "top_k": top_k}
            yield SizedDraft(knot, options.replaced(total_tokens=size, depth=depth, top_k=top_k))

    def grid(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for depth, top_k, rows in product(grids.TRIED_DEPTHS, grids.TRIED_TOP_K, grids.ROWS):
            # Fewer rows cannot have this depth. For more rows there are no candidates.
            if depth + 2 <= rows <= num_candidates(depth, top_k):
                yield {"total_tokens": rows, "depth": depth, "top_k": top_k}

    def longest_path(self, answer: Answer, label: str, position: int) -> int:
        return _stored_pool(answer, label, position).depth_of(answer.token_ids[position:])


def _stored_pool(answer: Answer, label: str, position: int) -> StoredPool:
    """Read the pool that was recorded at a position of an answer."""
    return StoredPool(**{name: rows[position - 1] for name, rows in answer.drafts[label].items()})


KIND = PoolKind()
