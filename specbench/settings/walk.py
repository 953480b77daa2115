"""The steps of one setting over one stored answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Step(NamedTuple):
    """A step of a setting, or an expected step."""

    emitted: float
    """Tokens that it emits: accepted draft tokens + 1; a mean if the draft is drawn."""
    rows: int
    """Rows that the target computes: the nodes of the draft tree, its root included."""
    before: int
    """Tokens of the answer that the target has read before it."""
    times: float
    """Expected number of times that it occurs; always 1 if drafts are not drawn."""


@dataclass(frozen=True)
class Walk:
    """One setting's steps over one stored answer, or its expected steps.

    If the tokens of chains are drawn, a step may begin at any position. Then there is a step per
    position and per length that a schedule asks for, each with its expected number of times.
    """

    prompt: str
    """Name of the prompt, "task/sample_id/turn"."""
    prompt_tokens: int
    """Tokens of the prompt."""
    steps: tuple[Step, ...]
    """All steps after the prefill, whose token is the answer's first."""
    num_expanded: int = 0
    """Expansions of dynamic trees in all steps."""
    num_missed: int = 0
    """Expansions that the profile lacks. Their children count as not accepted."""

    @cached_property
    def accepts(self) -> tuple[float, ...]:
        """Tokens that each step emits, as `Record.accept_lengths`."""
        return tuple(step.emitted for step in self.steps)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Rows of each step, as `Record.num_nodes`."""
        return tuple(step.rows for step in self.steps)

    @cached_property
    def before(self) -> tuple[int, ...]:
        """Tokens of the answer that the target has read before each step."""
        return tuple(step.before for step in self.steps)

    @cached_property
    def chances(self) -> tuple[float, ...]:
        """Expected number of times that each step occurs."""
        return tuple(step.times for step in self.steps)

    @property
    def num_steps(self) -> float:
        """Expected number of steps."""
        return sum(self.chances)

    @property
    def num_tokens(self) -> int:
        """Tokens of all steps: the answer's, without the prefill's."""
        return round(sum(step.emitted * step.times for step in self.steps))

    @property
    def vanilla(self) -> Walk:
        """Vanilla's steps over the same answer."""
        steps = tuple(
            Step(emitted=1, rows=1, before=before, times=1) for before in range(self.num_tokens)
        )
        return Walk(self.prompt, self.prompt_tokens, steps)


def mat(walks: Sequence[Walk]) -> float:
    """Mean accepted tokens: emitted tokens / steps, over all answers."""
    num_tokens = sum(walk.num_tokens for walk in walks)
    num_steps = sum(walk.num_steps for walk in walks)
    return num_tokens / max(1, num_steps)
