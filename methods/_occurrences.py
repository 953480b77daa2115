"""Earlier occurrences of the last tokens of a text."""

from collections.abc import Iterator, Sequence

SEPARATOR = -1
"""Separates the sequences of a text. No token has this id, so no match can cross it."""


class Occurrences:
    """A growing text, and the positions of each token in it."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._positions: dict[int, list[int]] = {}

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens."""
        for position, token in enumerate(token_ids, start=len(self.token_ids)):
            self._positions.setdefault(token, []).append(position)
        self.token_ids += token_ids

    def cut(self, length: int) -> None:
        """Drop all tokens from position `length` on."""
        for token in reversed(self.token_ids[length:]):
            self._positions[token].pop()
        del self.token_ids[length:]

    def ends(self, context: Sequence[int]) -> Iterator[list[int]]:
        """Yield the ends of all occurrences of the last 1, 2, 3, ... tokens of `context`.

        An end is the position after an occurrence: the text's length if the occurrence ends the
        text. Each list of ends is in ascending order. Stops when nothing matches.
        """
        token_ids = self.token_ids
        ends = [position + 1 for position in self._positions.get(context[-1], ())]
        for count in range(2, len(context) + 2):
            if not ends:
                return
            yield ends
            if count <= len(context):
                token = context[-count]
                ends = [end for end in ends if end >= count and token_ids[end - count] == token]
