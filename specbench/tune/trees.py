"""The best static trees, from the ranks of answers' tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from specbench.errors import UserError
from specbench.methods._static_tree import NUM_RANKS, Ranks
from specbench.tune.replay import num_before
from specbench.tune.stored_profile import Profile

_ROUNDS = 5


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
    arrays = profile.drafts.get(label, {})
    if "ranks" not in arrays:
        raise UserError(f"{label} has no recorded ranks.", "Profile medusa, eagle or hydra.")
    rows = list(map(_path, arrays["ranks"].tolist()))
    chosen = [
        rows[one.first : one.first + len(one.token_ids) - 1]
        for one in profile.answers
        if prompts is None or one.about.prompt in prompts
    ]
    tree: list[Ranks] = []
    found: list[tuple[int, list[Ranks]]] = []
    for _ in range(_ROUNDS + 1):
        steps = [path for answer in chosen for path in _walked(answer, {*tree})]
        found.append((len(steps), tree))
        counts = Counter(path[:depth] for path in steps for depth in range(1, len(path) + 1))
        ordered = sorted(counts, key=lambda path: (-counts[path], len(path), path))
        tree = ordered[: num_nodes - 1]
    return min(found[1:], key=lambda one: one[0])[1]


def _path(ranks: Sequence[int]) -> Ranks:
    """The ranks of a position up to the first token without one."""
    return tuple(ranks[: num_before(ranks, NUM_RANKS)])


def _walked(paths: Sequence[Ranks], tree: Container[Ranks]) -> Iterator[Ranks]:
    """The paths of the positions that steps with a tree begin from."""
    at = 0
    while at < len(paths):
        path = paths[at]
        yield path
        accepted = next((d for d in range(len(path), 0, -1) if path[:d] in tree), 0)
        at += accepted + 1
