"""Find the best static trees of a method, from the ranks of the answers' tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from specbench.errors import UserError
from specbench.methods.shared.static_tree import NUM_RANKS, Ranks
from specbench.tune.profile_file import Answer, Profile

TREE_ROUNDS = 5
"""The number of rounds that improve the tree after the first, which starts from an empty tree. More
rounds change little.
"""


class _TriedTree(NamedTuple):
    """A tree, and the number of steps that all answers together take with it."""

    num_steps: int
    paths: list[Ranks]


def best_tree(
    profile: Profile, label: str, num_nodes: int, prompts: Container[str] | None = None
) -> list[Ranks]:
    """Find the static tree of at most `num_nodes` nodes that takes the fewest steps of all tried.

    Returns the paths of all nodes except the root, or nothing if no token of an answer has a rank.
    A path is a tuple of ranks, one per depth, and the best token has rank 0: (0, 2) is the third
    best token at depth 2, below the best at depth 1.

    The tree has the paths that the answers take most often at the starts of steps. A path is at
    most as frequent as its parent's path, so these paths form a tree. Where steps start depends on
    the tree, so each round makes a new tree from the starts of the steps with the previous one.

    Args:
        profile: has the ranks of the answers' tokens among the method's draft tokens.
        label: the method as it was profiled.
        num_nodes: most nodes of the tree, the root included.
        prompts: names of the answers to make the tree from; by default all.

    Raises:
        UserError: no ranks are recorded under this label.
    """
    profiled = profile.header.methods.get(label)
    if profiled is None or profiled.kind != "ranks":
        raise UserError(f"{label} has no recorded ranks.", "Profile medusa, eagle or hydra.")
    # Per answer and position (number of its tokens so far): the ranks of the answer's next tokens,
    # up to the first token without a rank, and at most the recorded depths.
    paths_by_answer = [
        [ranked_path(answer, label, position) for position in range(1, len(answer.token_ids))]
        for answer in profile.answers
        if prompts is None or answer.about.prompt in prompts  # the answer's name
    ]
    tree_paths: list[Ranks] = []  # the tree of the first round has only its root
    tried_trees: list[_TriedTree] = []
    for _ in range(TREE_ROUNDS + 1):  # + 1: the round of the empty tree
        tree = set(tree_paths)
        # all answers' paths at the positions where a step with this tree starts
        step_paths = [path for paths in paths_by_answer for path in _paths_at_steps(paths, tree)]
        tried_trees.append(_TriedTree(num_steps=len(step_paths), paths=tree_paths))
        # How often the answers take each path: the path of a step and all its beginnings.
        counts = Counter(path[:depth] for path in step_paths for depth in range(1, len(path) + 1))
        # among equally frequent paths, the shorter first, then the one with lower ranks
        most_frequent = sorted(counts, key=lambda path: (-counts[path], len(path), path))
        tree_paths = most_frequent[: num_nodes - 1]  # the root has no path
    without_empty_tree = tried_trees[1:]
    return min(without_empty_tree, key=lambda tried: tried.num_steps).paths


def ranked_path(answer: Answer, label: str, position: int) -> Ranks:
    """Return the ranks of an answer's next tokens, up to the first token without a rank.

    `label` is the method as it was profiled. `position` is the number of tokens of the answer so
    far, at least 1.
    """
    ranks: list[int] = answer.drafts[label]["ranks"][position - 1].tolist()
    if NUM_RANKS in ranks:  # stands for a token without a rank
        ranks = ranks[: ranks.index(NUM_RANKS)]
    return tuple(ranks)


def _paths_at_steps(paths: Sequence[Ranks], tree: Container[Ranks]) -> Iterator[Ranks]:
    """Yield the paths of one answer at the starts of its steps, if every step drafts `tree`.

    A step accepts the longest beginning of the path that the tree has. The next step starts after
    the accepted tokens and the target's own token.

    Args:
        paths: paths[i] has the ranks, among the draft tokens, of the tokens that follow the first
            i + 1 tokens of the answer, up to the first token without a rank.
        tree: the paths of the tree's nodes.
    """
    index = 0  # where the step starts in `paths`
    while index < len(paths):
        path = paths[index]
        yield path
        num_accepted = len(path)  # draft tokens, if the tree has the whole path
        while num_accepted and path[:num_accepted] not in tree:
            num_accepted -= 1
        index += num_accepted + 1  # 1: the target's own token
