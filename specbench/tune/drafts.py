"""The draft of a replayed step: its rows, and the number of its accepted tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specbench.tune.profile_file import Answer


class Outcome(NamedTuple):
    """A possible number of accepted draft tokens, with its probability."""

    num_accepted: int
    """The number of accepted draft tokens."""
    chance: float = 1
    """The probability of this number. It is 1 unless the draft is drawn."""
    next_length: int | None = None
    """The draft tokens that a schedule asks for in the next step; None for as many as now."""


class Draft(NamedTuple):
    """The draft of a step, and how many of its tokens may be accepted."""

    num_nodes: int
    """The number of rows of the step, the root included."""
    outcomes: Sequence[Outcome]
    """All possible numbers of accepted tokens."""
    num_expanded: int = 0
    """The number of expansions of a dynamic tree."""
    num_missed: int = 0
    """The number of expansions that the profile lacks."""


DraftAt = Callable[[Answer, int, int | None], Draft]
"""A function that returns the draft at a position. Its arguments are an answer, the number of the
answer's tokens before the draft, and the number of draft tokens that a schedule asks for (None for
the setting's own number).
"""


def certain(num_nodes: int, num_accepted: int) -> Draft:
    """Make a draft with a known number of accepted tokens."""
    return Draft(num_nodes, [Outcome(num_accepted)])


def num_accepted(tokens: Sequence[int], parents: Sequence[int], answer: Sequence[int]) -> int:
    """Count a tree's draft tokens that are accepted if the text continues with `answer`.

    Args:
        tokens: tokens of the nodes, the root first.
        parents: index of each node's parent, which comes before the node.
        answer: the tokens that follow the root.
    """
    # the depth of each node whose path from the root matches the start of the answer
    depths = {0: 0}
    for node in range(1, len(tokens)):
        depth = depths.get(parents[node])
        if depth is not None and depth < len(answer) and tokens[node] == answer[depth]:
            depths[node] = depth + 1
    return max(depths.values())


class AcceptedShare(NamedTuple):
    """A possible number of accepted tokens of a chain, with the chance of exactly this number."""

    num_accepted: int
    chance: float


def shares(chances: Sequence[float]) -> Iterator[AcceptedShare]:
    """Yield each number of tokens of a chain that may be accepted, with its chance.

    `chances` has the chance that each token is accepted if all tokens before it are accepted.
    """
    # P(a) = chance_1 * ... * chance_a * (1 - chance_{a+1}), where the chance after the last is 0
    chance_so_far = 1.0  # the chance that all tokens before this one are accepted
    for num_accepted, chance in enumerate([*chances, 0]):
        if chance < 1 and chance_so_far:
            yield AcceptedShare(num_accepted, chance_so_far * (1 - chance))
        chance_so_far *= chance
