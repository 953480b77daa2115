"""Tokens: a bit or a chance per position, for chains whose tokens do not depend on their start.

A draft model that reads only the answer's tokens drafts the same next token wherever the chain
began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specbench.engine.drafter import Drafter
from specbench.settings import grids
from specbench.tune.kinds.path import ChainRecorder, PathKind
from specbench.tune.profile_file import Arrays
from specbench.tune.recorder import Recorder


class TokenRecorder(ChainRecorder):
    """Keeps whether each chain's first token is right, or its chance. A replay needs no more."""

    @property
    def arrays(self) -> Arrays:
        """The chance that each drawn first token is accepted, or 1 if it is right and 0 if not."""
        path = self.path
        if path is None:
            return {}
        return {"token": path if path.ndim == 1 else path[:, 0]}


class TokenKind(PathKind):
    """Chains of any length. They consist of the tokens at consecutive positions."""

    name = "token"
    array_names = ("token",)
    free_options = ("num_tokens", "schedule")
    bounded_options = ()

    def record(self, drafter: Drafter, answer: Sequence[int]) -> Recorder:
        return TokenRecorder(drafter, answer)

    def chances(self, arrays: Arrays, position: int, num_drafted: int) -> list[float]:
        first = position - 1
        chances: list[float] = arrays["token"][first : first + num_drafted].tolist()
        return chances

    def longest_chain(self, options: Any) -> int:
        return max(grids.TIMED_CHAINS)


KIND = TokenKind()
