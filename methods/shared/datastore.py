"""A datastore: the token ids of a corpus, sorted so that bisection finds any continuation.

A safetensors file holds `token_ids` [tokens] and `order` [tokens], which are the positions sorted
by the tokens that follow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from specbench.engine.drafter import BuildContext
from specbench.errors import CheckpointError

SORTED_BY = 32
"""Number of tokens by which positions are sorted. A longer context cannot be looked up."""
SEPARATOR = -1
"""Ends each text of the corpus."""


class Datastore:
    """A sorted corpus that is read into memory."""

    def __init__(self, token_ids: NDArray[np.int32], order: NDArray[np.int32]) -> None:
        self._token_ids, self._order = token_ids, order

    @classmethod
    def build(cls, texts: Iterable[Sequence[int]]) -> Datastore:
        """Sort the texts, given as token ids."""
        joined = [token for text_ids in texts for token in (*text_ids, SEPARATOR)]
        token_ids = np.array(joined, dtype=np.int32)
        # rank [tokens] sorts the positions by the `width` tokens that begin there.
        rank = np.unique(token_ids, return_inverse=True)[1].astype(np.int64) + 1
        width = 1
        while width < SORTED_BY:  # each round doubles the number of tokens that decide
            rank_after = np.zeros_like(rank)  # the rank `width` tokens later
            rank_after[:-width] = rank[width:]
            pair = rank * (len(rank) + 1) + rank_after
            rank = np.unique(pair, return_inverse=True)[1] + 1
            width *= 2
        order = np.argsort(rank, kind="stable")
        return cls(token_ids, order.astype(np.int32))

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        unfinished = path.with_name(f"{path.name}.part")
        save_file({"token_ids": self._token_ids, "order": self._order}, unfinished)
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> Datastore:
        """Read a file that `save` wrote.

        Raises:
            CheckpointError: it is not a datastore.
        """
        try:
            arrays = load_file(path)
            token_ids, order = arrays["token_ids"], arrays["order"]
            problem = _problem(token_ids, order)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            problem = str(error)
        if problem:
            raise CheckpointError(
                f"{path} is not a datastore: {problem}.",
                "Make one: specbench datastore build FILE.jsonl --model M --output F.",
            )
        return cls(token_ids, order)

    def continuations(self, context: Sequence[int], length: int, most: int) -> list[list[int]]:
        """Up to `length` tokens after each occurrence of `context`, for at most `most` of them."""
        starts = self._positions(context)[:most].tolist()
        return [self._continuation(start + len(context), length) for start in starts]

    def longest_match(self, context: Sequence[int], length: int) -> tuple[int, list[int]]:
        """Return the length of the longest match at the end of `context`, and the tokens after it.

        The tokens, `length` at most, are those after the match's earliest occurrence. Without a
        match, the result is 0 and no tokens.
        """
        sizes = range(1, min(len(context), SORTED_BY) + 1)

        def is_missing(size: int) -> bool:
            return len(self._positions(context[-size:])) == 0

        size = bisect_left(sizes, True, key=is_missing)  # the largest size that occurs
        if not size:
            return 0, []
        starts = self._positions(context[-size:])
        while SORTED_BY <= size < len(context):
            longer = starts[starts > 0] - 1
            longer = longer[self._token_ids[longer] == context[-size - 1]]
            if not len(longer):
                break
            starts = longer
            size += 1
        return size, self._continuation(int(starts.min()) + size, length)

    def _positions(self, context: Sequence[int]) -> NDArray[np.int32]:
        """Positions of `context`, at most `SORTED_BY` tokens long, sorted by what follows."""
        size = len(context)
        context_ids = list(context)

        def tokens_at(position: int) -> list[int]:
            return self._token_ids[position : position + size].tolist()

        begin = bisect_left(self._order, context_ids, key=tokens_at)
        end = bisect_right(self._order, context_ids, lo=begin, key=tokens_at)
        return self._order[begin:end]

    def _continuation(self, position: int, length: int) -> list[int]:
        """Up to `length` tokens from a position, within its text."""
        token_ids = self._token_ids[position : position + length].tolist()
        if SEPARATOR in token_ids:
            return token_ids[: token_ids.index(SEPARATOR)]
        return token_ids


def _problem(token_ids: NDArray[np.int32], order: NDArray[np.int32]) -> str | None:
    """The reason that the arrays are not a datastore, or None if they are."""
    if token_ids.size == 0 or token_ids.ndim != 1 or token_ids.shape != order.shape:
        return f"{token_ids.size} tokens, {order.size} in order"
    if not token_ids.dtype == order.dtype == np.int32 or token_ids.min() < SEPARATOR:
        return "its tokens are not token ids"
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        return "its order does not list each position once"
    end = np.full(SORTED_BY, SEPARATOR - 1, token_ids.dtype)  # sorts before all tokens
    padded_ids = np.append(token_ids, end)
    # Neighbours in the order whose first `depth` tokens are equal.
    earlier = order[:-1]
    later = order[1:]
    for depth in range(SORTED_BY):
        earlier_ids = padded_ids[earlier + depth]
        later_ids = padded_ids[later + depth]
        if (earlier_ids > later_ids).any():
            return "its order is not sorted"
        is_equal = earlier_ids == later_ids
        earlier = earlier[is_equal]
        later = later[is_equal]
    return None


def read_datastore(context: BuildContext) -> Datastore:
    """The datastore that a method was given as its weights.

    Raises:
        CheckpointError: it is not a datastore, or not one of the target's tokens.
    """
    assert isinstance(context.weights, Path)
    datastore = Datastore.load(context.weights)
    largest = int(datastore._token_ids.max())
    if largest >= context.target.vocab_size:
        raise CheckpointError(
            f"{context.weights} holds token {largest}; the target's vocabulary has "
            f"{context.target.vocab_size}.",
            "Build the datastore with this model.",
        )
    return datastore
