"""Numbers about the tokens, logits and drafts of answers, as columns that can be joined."""

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
        """Join the rows of all parts. Without any part, the result has no rows."""
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
    """Numbers about emitted tokens and the distributions p that they should be drawn from.

    All arrays are [tokens]. For `middle`, all tokens of the vocabulary are laid end to end on
    [0, 1) in the order of their ids. Each takes a stretch as long as its probability.
    """

    surprise: Array
    """-log p(token) in nats. If p rules the token out, this is the expected surprise."""
    entropy: Array
    """The expected surprise."""
    surprise_variance: Array
    """The variance of the surprise if the token is drawn from p."""
    surprise_third: Array
    """The third central moment of the surprise if the token is drawn from p."""
    rank: Array
    """The mass of the likelier tokens plus half of the token's own. Its expected value is 1/2,
    which also stands for a token that p rules out.
    """
    rank_variance: Array
    """The variance of the rank if the token is drawn from p."""
    rank_third: Array
    """The third central moment of the rank if the token is drawn from p."""
    is_best: Array
    """1 for the likeliest token (of equal ones, only the first), else 0."""
    best: Array
    """The probability of the likeliest token."""
    middle: Array
    """The middle of the token's stretch of [0, 1); 1/2 if p rules the token out. If the token is
    drawn from p, the middle has the variance of the rank.
    """
    tail: Array
    """The mass of all tokens that are at most as likely; 1 if only rounding allows the token."""
    is_possible: Array
    """False if p rules the token out, and rounding does not explain it."""
    depth: Array
    """The token's number in its step, from 1. It is 0 for the prefill's token, with which an answer
    begins, and UNKNOWN if the steps are not known.
    """
    has_draft: Array
    """1 if the step's tree had draft tokens for the token's place. It is 0 for a bonus token after
    the last draft token and for the prefill's token, and UNKNOWN if the tree is not known.
    """


@dataclass(frozen=True, slots=True, eq=False)
class LogitNumbers(Columns):
    """Differences of the engine's logits from those of a plain forward. All arrays are [rows]."""

    deviation: Array
    """The largest absolute difference among the best logits."""
    scale: Array
    """The largest magnitude of the plain forward's best logits."""
    is_flipped: Array
    """True if the best token differs."""
    is_exact: Array
    """1 if all logits have the bits of the engine's steps over chains of the answer, else 0. It is
    UNKNOWN if bits depend on the shape of a step, or were not compared.
    """
    context: Array
    """A hash of the tokens before the row, prompt included; UNKNOWN for rows that the audit of a
    method does not use.
    """


@dataclass(frozen=True, slots=True, eq=False)
class DraftNumbers(Columns):
    """Numbers about drawn draft tokens and the distributions q that they claim.

    All arrays are [draft tokens]. All tokens of the vocabulary are laid end to end on [0, 1). A
    position is a random point of the draft token's stretch (see `draft_numbers`). It is uniform in
    [0, 1) if the token was drawn from q.
    """

    by_rank: Array
    """The token's position if the likeliest tokens come first."""
    by_id: Array
    """The token's position if tokens are in the order of their ids."""
    probability: Array
    """The token's probability in q."""
    mass: Array
    """The sum of q."""
