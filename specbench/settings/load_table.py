"""Convert numbers of draft tokens by load to the forms that serving engines read.

vLLM          [[1, 8, 4], [9, 64, 0]]     [first load, last load (included), draft tokens]
TensorRT-LLM  {8: 4}                      {last load: draft tokens}; no drafts at larger loads

A load is a number of requests at once.

In vLLM a load between two rows, or beyond the last one, has the draft tokens of the row before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from specbench.errors import UserError

OPEN_END = 65536
"""Stands for the last load of an open row if a form needs a number. No server has such a load."""


class Start(NamedTuple):
    """A load at which the number of draft tokens of a server changes."""

    load: int
    """The number of requests at once from which the number of draft tokens applies."""
    num_tokens: int
    """Draft tokens per step, up to the next start; 0 stands for plain decoding."""


@dataclass(frozen=True, slots=True)
class LoadTable:
    """Numbers of draft tokens by load. The last one applies to all larger loads."""

    starts: tuple[Start, ...]
    """The starts by rising load, from load 1 on. Neighbours have different numbers of draft tokens.
    """

    @classmethod
    def of(cls, starts: Iterable[tuple[int, int]]) -> LoadTable:
        """Make a table from pairs (first load, draft tokens), sorted by load."""
        # A group has the successive pairs with equal draft tokens. Its first load is the start.
        groups = groupby(starts, key=itemgetter(1))
        first, *later = [Start(*next(pairs)) for _, pairs in groups]
        return cls((first._replace(load=1), *later))

    def at(self, load: int) -> int:
        """Return the draft tokens at a load."""
        return [start.num_tokens for start in self.starts if start.load <= load][-1]

    def vllm_rows(self) -> list[tuple[int, int, int]]:
        """Return rows of first load, last load and draft tokens, as in vLLM.

        The last row ends at OPEN_END.
        """
        ends = [following.load - 1 for _, following in pairwise(self.starts)]
        return [
            (start.load, end, start.num_tokens)
            for start, end in zip(self.starts, [*ends, OPEN_END], strict=True)
        ]

    def trtllm_schedule(self) -> dict[int, int]:
        """Return TensorRT-LLM's `draft_len_schedule`: draft tokens by the last load that uses them.

        Raises:
            UserError: TensorRT-LLM has no form for the table, whose first number must be the
                largest.
        """
        largest = self.starts[0].num_tokens
        if largest == 0 or any(start.num_tokens > largest for start in self.starts):
            raise UserError(
                "TensorRT-LLM cannot express this table: the first number of draft tokens must be "
                "the largest (max_draft_len).",
                "Start its server with one number of draft tokens, or without speculation.",
            )
        schedule = {last_load: num_tokens for _, last_load, num_tokens in self.vllm_rows()}
        if schedule[OPEN_END] == 0:  # beyond the last row there are no drafts
            del schedule[OPEN_END]
        return schedule
