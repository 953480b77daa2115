"""The text of an answer, and where each of its tokens ends in it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from specbench.measure.base import Codec

_WINDOW = 8
"""Tokens before a token that can change how it is written: a character has at most four bytes."""


def token_ends(codec: Codec, token_ids: Sequence[int], text: str) -> tuple[int, ...]:
    """Characters of `text` up to the end of each token [tokens].

    A character whose bytes are spread over tokens ends with the last of them. Decodes windows,
    since the whole text once a token would take longer than the answer did.
    """

    def length(ids: Sequence[int]) -> int:
        return len(codec.text(ids).rstrip("\N{REPLACEMENT CHARACTER}")) if ids else 0

    lengths = []
    for i in range(len(token_ids)):
        window = token_ids[max(0, i - _WINDOW) : i + 1]
        lengths.append(length(window) - length(window[:-1]))
    ends = [min(end, len(text)) for end in accumulate(lengths)]
    if ends:
        ends[-1] = len(text)
    return tuple(reversed([*accumulate(reversed(ends), min)]))
