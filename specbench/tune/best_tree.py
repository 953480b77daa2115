"""The best static trees of a method, from the ranks of answers' tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from specbench.errors import UserError
from specbench.methods.shared.static_tree import NUM_RANKS, Ranks
from specbench.tune.profile_file import Answer, Profile

TREE_ROUNDS = 5
"""Rounds in which the best tree and the steps with it are found; later ones change little."""


class _TriedTree(NamedTuple):
    """A tree with the number of steps that it needs."""

    num_steps: int
    paths: list[Ranks]


def best_tree(
    profile: Profile, label: str, num_nodes: int, prompts: Container[str] | None = None
) -> list[Ranks]:
    """The paths of the static tree of `num_nodes` rows that gets most draft tokens accepted.

    They are the most frequent ranks of the answers' tokens over the steps of a walk. No path
    is more frequent than its parent's, so that they form a tree. The steps depend on the tree
    in turn, so that this takes some rounds; the tree with the fewest steps counts.

    Args:
        profile: has the method's ranks.
        label: the method as it was profiled.
        num_nodes: rows, the root included.
        prompts: names of the answers to choose by; by default all.

    Raises:
        UserError: no ranks are recorded under this label.
    """
    method = profile.header.methods.get(label)
    if method is None or method.kind != "ranks":
        raise UserError(f"{label} has no recorded ranks.", "Profile medusa, eagle or hydra.")
    paths_by_answer = [
        [ranked_path(answer, label, position) for position in range(1, len(answer.token_ids))]
        for answer in profile.answers
        if prompts is None or answer.about.prompt in prompts
    ]
    paths: list[Ranks] = []
    tried: list[_TriedTree] = []
    for _ in range(TREE_ROUNDS + 1):
        in_tree = set(paths)
        steps = [step for answer in paths_by_answer for step in _paths_at_steps(answer, in_tree)]
        tried.append(_TriedTree(len(steps), paths))
        counts = Counter(path[:depth] for path in steps for depth in range(1, len(path) + 1))
        by_count = sorted(counts, key=lambda path: (-counts[path], len(path), path))
        paths = by_count[: num_nodes - 1]
    without_empty_tree = tried[1:]
    return min(without_empty_tree, key=lambda tree: tree.num_steps).paths


def ranked_path(answer: Answer, label: str, position: int) -> Ranks:
    """The ranks of the answer's tokens from a position on, up to the first without one."""
    ranks: list[int] = answer.drafts[label]["ranks"][position - 1].tolist()
    if NUM_RANKS in ranks:  # stands for a token without a rank
        ranks = ranks[: ranks.index(NUM_RANKS)]
    return tuple(ranks)


def _paths_at_steps(paths: Sequence[Ranks], tree: Container[Ranks]) -> Iterator[Ranks]:
    """Those of an answer's paths, one per position, at which steps with a tree begin."""
    position = 0
    while position < len(paths):
        path = paths[position]
        yield path
        num_accepted = len(path)
        while num_accepted and path[:num_accepted] not in tree:
            num_accepted -= 1
        position += num_accepted + 1
