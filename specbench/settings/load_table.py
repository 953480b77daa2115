"""Draft tokens by load, in the forms of serving engines.

vLLM          [[1, 8, 4], [9, 64, 0]]     first and last request at once, both included
TensorRT-LLM  {8: 4}                      last request at once; beyond the last row no drafts

In vLLM a load between two rows, or beyond the last one, has the draft tokens of the row before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from specbench.errors import UserError

OPEN_END = 65536
"""Last load of a row without an end, for forms that need one: more than any server takes."""


class Start(NamedTuple):
    """The draft tokens of a server for a load and all larger loads below the next start."""

    load: int
    """Requests at once."""
    num_tokens: int
    """Draft tokens of a step; 0: plain decoding."""


@dataclass(frozen=True, slots=True)
class LoadTable:
    """Draft tokens by requests at once. The last number holds for all larger loads."""

    starts: tuple[Start, ...]
    """By rising load, the first at 1; neighbours differ in their draft tokens."""

    @classmethod
    def of(cls, starts: Iterable[tuple[int, int]]) -> LoadTable:
        """The table of pairs of a load and the draft tokens from there on, by rising load."""
        changes: list[Start] = []
        for load, num_tokens in starts:
            if not changes or changes[-1].num_tokens != num_tokens:
                changes.append(Start(load, num_tokens))
        return cls((Start(1, changes[0].num_tokens), *changes[1:]))

    def at(self, load: int) -> int:
        """Draft tokens at a load."""
        return [start.num_tokens for start in self.starts if start.load <= load][-1]

    def vllm_rows(self) -> list[tuple[int, int, int]]:
        """The rows of vLLM: first load, last load, draft tokens. The last row ends at OPEN_END."""
        ends = [following.load - 1 for _, following in pairwise(self.starts)]
        return [
            (start.load, end, start.num_tokens)
            for start, end in zip(self.starts, [*ends, OPEN_END], strict=True)
        ]

    def trtllm_schedule(self) -> dict[int, int]:
        """TensorRT-LLM's `draft_len_schedule`: draft tokens by the last load that has them.

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
