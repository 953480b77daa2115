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
    """The static tree of `num_nodes` nodes with the most accepted draft tokens.

    Returns the paths of all nodes but the root. A path has the rank of the draft token at each
    depth, from 0 for the best one: (0, 2) is the third best token after the best one.

    The tree has the paths that the answers take most often, counted at the steps of a decode.
    No path is more frequent than its parent's, so they form a tree. The starts of steps depend on
    the tree in turn, so this takes some rounds. The tree with the fewest steps wins.

    Args:
        profile: has the method's ranks of the answers' tokens.
        label: the method as it was profiled.
        num_nodes: nodes of the tree, the root included.
        prompts: names of the answers to choose by; by default all.

    Raises:
        UserError: no ranks are recorded under this label.
    """
    profiled = profile.header.methods.get(label)
    if profiled is None or profiled.kind != "ranks":
        raise UserError(f"{label} has no recorded ranks.", "Profile medusa, eagle or hydra.")
    # Per answer and position (tokens so far): the path of the answer's next tokens, as ranks, up
    # to the first token without one.
    paths_by_answer = [
        [ranked_path(answer, label, position) for position in range(1, len(answer.token_ids))]
        for answer in profile.answers
        if prompts is None or answer.about.prompt in prompts  # its name
    ]
    tree_paths: list[Ranks] = []  # the first round has no draft tokens
    tried_trees: list[_TriedTree] = []
    for _ in range(TREE_ROUNDS + 1):  # one more for the empty tree
        tree = set(tree_paths)
        # the path at each position where a step with this tree begins, of all answers
        step_paths = [path for paths in paths_by_answer for path in _paths_at_steps(paths, tree)]
        tried_trees.append(_TriedTree(num_steps=len(step_paths), paths=tree_paths))
        # How often the answers take each path: the path of a step and all its beginnings.
        counts = Counter(path[:depth] for path in step_paths for depth in range(1, len(path) + 1))
        # equally frequent paths: the shorter first, then the path of lower ranks
        most_frequent = sorted(counts, key=lambda path: (-counts[path], len(path), path))
        tree_paths = most_frequent[: num_nodes - 1]  # the root has no path
    without_empty_tree = tried_trees[1:]
    return min(without_empty_tree, key=lambda tried: tried.num_steps).paths


def ranked_path(answer: Answer, label: str, position: int) -> Ranks:
    """The ranks of the answer's tokens from a position on, up to the first without one."""
    ranks: list[int] = answer.drafts[label]["ranks"][position - 1].tolist()
    if NUM_RANKS in ranks:  # stands for a token without a rank
        ranks = ranks[: ranks.index(NUM_RANKS)]
    return tuple(ranks)


def _paths_at_steps(paths: Sequence[Ranks], tree: Container[Ranks]) -> Iterator[Ranks]:
    """The paths of an answer at the positions where steps begin, if all steps draft `tree`.

    If the tree lacks a path, the longest beginning that it has is accepted.

    Args:
        paths: per position of the answer, the ranks of its next tokens among the draft tokens;
            the first path follows the prefill's token.
        tree: the paths of the tree's nodes.
    """
    position = 0  # index in `paths`
    while position < len(paths):
        path = paths[position]
        yield path
        num_accepted = len(path)  # draft tokens; too many as long as the tree lacks the path
        while num_accepted and path[:num_accepted] not in tree:
            num_accepted -= 1
        position += num_accepted + 1  # a step also emits a token of the target
