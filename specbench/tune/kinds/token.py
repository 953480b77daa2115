"""Tokens: one bit or chance per position, for chains whose tokens do not depend on their start.

A draft model reads only the answer's tokens, so the token after them does not depend on the chain's
start.
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
    """Keeps whether each chain's first token is right, or its chance; a replay needs no more."""

    @property
    def arrays(self) -> Arrays:
        """Chances of drawn first tokens, or 1 for right and 0 for wrong greedy ones [positions]."""
        chances = self.chances
        if chances is not None:
            return {"token": chances[:, 0]}
        num_right = self.num_right
        return {"token": num_right} if len(num_right) else {}


class TokenKind(PathKind):
    """Chains of any length, made of the tokens at consecutive positions."""

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
