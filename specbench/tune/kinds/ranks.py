"""Ranks: for static trees, the rank of the answer's token among the draft tokens of each depth."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specbench.engine.drafter import Drafter, State
from specbench.errors import UserError
from specbench.methods.shared.static_tree import NUM_RANKS, PROFILE_DEPTH, Ranks, StaticTree
from specbench.settings import grids
from specbench.settings.run_method import RunMethod
from specbench.tune.best_tree import best_tree, ranked_path
from specbench.tune.drafts import Draft, DraftAt, certain, num_accepted
from specbench.tune.host_target import host_target
from specbench.tune.kind import Kind, SizedDraft
from specbench.tune.profile_file import Answer, Arrays, Profile
from specbench.tune.recorder import Recorder


class RanksRecorder(Recorder):
    """Asks the drafter for the ranks of the answer's tokens in place of a draft."""

    def __init__(self, drafter: Drafter, answer: Sequence[int]) -> None:
        super().__init__(drafter, answer)
        self._ranks: list[list[int]] = []

    def record(self, state: State, following: Sequence[int]) -> None:
        self._ranks.append(self.drafter.ranks(state, following))

    @property
    def arrays(self) -> Arrays:
        return {"ranks": np.array(self._ranks, dtype=np.uint16)} if self._ranks else {}


class RanksKind(Kind):
    """Static trees. Any tree can be compared with the ranks of the answer's tokens."""

    name = "ranks"
    array_names = ("ranks",)
    free_options = ("tree", "nodes")
    has_candidates = True

    def record(self, drafter: Drafter, answer: Sequence[int]) -> Recorder:
        return RanksRecorder(drafter, answer)

    def replay(self, profile: Profile, label: str, method: RunMethod) -> DraftAt:
        """Make a function that returns a setting's draft at a position of a stored answer.

        Args:
            profile: has the ranks of the answers' tokens among the method's draft tokens.
            label: the method as it was profiled.
            method: the method with the options of the setting, which name the tree.

        Raises:
            UserError: the tree needs ranks that are not recorded, or `tree` names no tree.
        """
        tree = _tree_within(profile, label, method.options)
        # the rank of each node among the tokens after its parent, beginning with the root (0)
        ranks_of_nodes = tree.ranks.tolist()
        parents = tree.layout.parents.tolist()  # index of each node's parent

        def draft_at(answer: Answer, position: int, wanted_length: int | None) -> Draft:
            """Return the size of the tree after `position` tokens, and its accepted tokens.

            The tree is the same everywhere. `wanted_length` is only for chains.
            """
            ranks_by_position = answer.drafts[label]["ranks"]  # [positions, depths]
            following_ranks = ranks_by_position[position - 1].tolist()  # of the next tokens
            accepted = num_accepted(ranks_of_nodes, parents, following_ranks)
            return certain(len(ranks_of_nodes), accepted)

        return draft_at

    def sizes(self, options: Any, drafter: Drafter) -> Iterator[SizedDraft]:
        for num_nodes in grids.up_to(max(drafter.tree_sizes), grids.TIMED_NODES):
            yield SizedDraft({"rows": num_nodes}, options.replaced(nodes=num_nodes))

    def grid(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        # A tree of a single row has no draft token.
        yield from ({"nodes": rows} for rows in grids.ROWS if rows > 1)

    def longest_path(self, answer: Answer, label: str, position: int) -> int:
        return len(ranked_path(answer, label, position))

    def best_trees(
        self, profile: Profile, label: str, prompts: Collection[str]
    ) -> dict[int, list[Ranks]]:
        return {rows: best_tree(profile, label, rows, prompts) for rows in grids.ROWS if rows > 1}


def _tree_within(profile: Profile, label: str, options: Any) -> StaticTree:
    """Load the static tree of a setting, if the profile has the ranks that the tree needs.

    Args:
        profile: has, per answer, the ranks of the answer's tokens among the method's draft tokens
            [positions, depths].
        label: the method as it was profiled.
        options: options of the setting; `tree` and `nodes` name the tree.

    Raises:
        UserError: `tree` names no tree, or the tree is deeper than the recorded ranks, or has a
            rank of `NUM_RANKS` or more: such ranks are never recorded.
    """
    # An answer of a single token has no position, so it has no array of ranks.
    recorded = [answer.drafts[label]["ranks"] for answer in profile.answers if answer.drafts[label]]
    recorded_depth = max((ranks.shape[1] for ranks in recorded), default=0)
    # At most PROFILE_DEPTH depths are recorded. If there are fewer, the method has a head per
    # recorded depth. Levels of the tree below the last head are cut off, as in a run.
    most_depth = recorded_depth if recorded_depth < PROFILE_DEPTH else None  # None: nothing is cut
    # The tree is on the CPU, and needs no weights of the target.
    tree = StaticTree.load(options, host_target(profile), max_depth=most_depth)
    needed_depth = tree.layout.max_depth
    needed_ranks = tree.num_candidates  # the largest rank + 1
    if needed_depth > recorded_depth or needed_ranks > NUM_RANKS:
        raise UserError(
            f"Tree {options.tree} needs depth {needed_depth} and {needed_ranks} ranks, "
            f"but the profile has depth {recorded_depth} and {NUM_RANKS} ranks.",
            "Choose a smaller tree.",
        )
    return tree


KIND = RanksKind()
