"""The steps of one setting over one stored answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Walk:
    """One setting's steps over one stored answer, or the steps that are expected of it.

    If the tokens of chains are drawn, a step may begin at any position. Each position occurs
    once, with how often a step is expected there.
    """

    prompt: str
    """Its name, "task/sample_id/turn"."""
    prompt_tokens: int
    """Tokens of the prompt."""
    accepts: tuple[float, ...]
    """Tokens that each step emits: accepted draft tokens + 1, as `Record.accept_lengths`."""
    nodes: tuple[int, ...]
    """Rows of each step, as `Record.num_nodes`."""
    before: tuple[int, ...]
    """Tokens of the answer that the target has read before each step."""
    chances: tuple[float, ...]
    """Expected number of times that each step occurs; always 1 if drafts are not drawn."""

    @property
    def num_steps(self) -> float:
        return sum(self.chances)

    @property
    def num_tokens(self) -> int:
        """Tokens of all steps: the answer's, without the prefill's."""
        return round(sum(a * c for a, c in zip(self.accepts, self.chances, strict=True)))


def mat(walks: Sequence[Walk]) -> float:
    """Mean accepted tokens: emitted tokens by steps, of all answers."""
    return sum(one.num_tokens for one in walks) / max(1, sum(one.num_steps for one in walks))
