"""Numbers about the tokens, logits and drafts of answers: columns that can be joined."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

UNKNOWN = -1
"""Marks an unknown entry of a column."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Equally long arrays of numbers. The arrays of several answers can be joined."""

    def __len__(self) -> int:
        return len(self._arrays()[0])

    def _arrays(self) -> list[Array]:
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """One object with the rows of all parts. Without parts it has no rows."""
        if not parts:
            return cls(*np.zeros((len(fields(cls)), 0)))
        columns = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
        }
        return cls(**columns)

    def where(self, is_kept: Array) -> Self:
        """The rows at which the array [rows] is true."""
        return type(self)(*(array[is_kept] for array in self._arrays()))


@dataclass(frozen=True, slots=True, eq=False)
class TokenNumbers(Columns):
    """Emitted tokens and the distributions p that they should be drawn from: [tokens] each.

    A surprise and a rank come with the variance and third central moment that they have if the
    token is a draw. A token that p rules out has the expected surprise, rank and middle instead.
    """

    surprise: Array
    """-log p(token) in nats."""
    entropy: Array
    """The expected surprise."""
    surprise_variance: Array
    surprise_third: Array
    rank: Array
    """The mass of the likelier tokens plus half of the token's own: 1/2 is expected."""
    rank_variance: Array
    rank_third: Array
    is_best: Array
    """1 if no token is likelier, else 0."""
    best: Array
    """The probability of the likeliest token."""
    position: Array
    """The token's place in [0, 1) with tokens by id; uniform if it is a draw."""
    middle: Array
    """The middle of the token's stretch of [0, 1) with tokens by id. Its variance is the rank's."""
    tail: Array
    """The mass of all tokens that are at most as likely; 1 if only rounding allows the token."""
    is_possible: Array
    """False if p rules the token out beyond rounding."""
    depth: Array
    """The token's number in its step, from 1; 0 for the prefill's token, with which an answer
    begins; UNKNOWN without steps.
    """
    has_draft: Array
    """1 if the step's tree had draft tokens for the token's place; 0 if it had none, so that the
    token is the bonus, or if the token is the prefill's; UNKNOWN if the tree is not known.
    """


@dataclass(frozen=True, slots=True, eq=False)
class LogitNumbers(Columns):
    """Logits of the engine against a plain forward's: [rows] each."""

    deviation: Array
    """The largest absolute difference among the best logits."""
    scale: Array
    """The largest magnitude of the plain forward's best logits."""
    is_flipped: Array
    """True if the best token differs."""
    is_exact: Array
    """1 if all logits equal, bit for bit, those of the engine's steps over chains of the answer; 0
    if not; UNKNOWN where bits depend on the shape of a step, or were not compared.
    """


@dataclass(frozen=True, slots=True, eq=False)
class DraftNumbers(Columns):
    """Drawn draft tokens against the distributions q that they claim: [draft tokens] each.

    Both positions are uniform in [0, 1) if the token was drawn from q.
    """

    by_rank: Array
    """The token's position in q with tokens by falling probability."""
    by_id: Array
    """The token's position in q with tokens by id."""
    probability: Array
    """The token's probability in q."""
    mass: Array
    """The sum of q."""
