"""The steps that one setting takes over one of vanilla's stored answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Step(NamedTuple):
    """A step of a setting. If drafts are drawn, it may be uncertain (see `times`)."""

    emitted: float
    """The tokens that the step emits: accepted draft tokens + 1. A mean if the draft is drawn."""
    rows: int
    """The rows that the target computes: the nodes of the draft tree with its root."""
    before: int
    """The tokens of the answer that the target has read before the step."""
    times: float
    """The expected number of occurrences of the step; always 1 if drafts are not drawn."""


@dataclass(frozen=True)
class Walk:
    """The steps of one setting over one stored answer.

    If the tokens of chains are drawn, a step may begin at any position. Then there is a step per
    position and draft length that a schedule may ask for, each with its expected number of times.
    """

    prompt: str
    """The name of the prompt, "task/sample_id/turn"."""
    prompt_tokens: int
    """The number of tokens of the prompt."""
    steps: tuple[Step, ...]
    """All steps after the prefill. The prefill emits the first token of the answer."""
    num_expanded: int = 0
    """The number of expansions of dynamic trees in all steps."""
    num_missed: int = 0
    """The number of expansions that the profile lacks. Their children count as not accepted."""

    @cached_property
    def accepts(self) -> tuple[float, ...]:
        """The tokens that each step emits, like `Record.accept_lengths`."""
        return tuple(step.emitted for step in self.steps)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The rows of each step, like `Record.num_nodes`."""
        return tuple(step.rows for step in self.steps)

    @cached_property
    def before(self) -> tuple[int, ...]:
        """The tokens of the answer that the target has read before each step."""
        return tuple(step.before for step in self.steps)

    @cached_property
    def chances(self) -> tuple[float, ...]:
        """The expected number of occurrences of each step."""
        return tuple(step.times for step in self.steps)

    @property
    def num_steps(self) -> float:
        """The expected number of steps."""
        return sum(self.chances)

    @property
    def num_tokens(self) -> int:
        """The tokens that all steps emit: the tokens of the answer without the first."""
        return round(sum(step.emitted * step.times for step in self.steps))

    @property
    def vanilla(self) -> Walk:
        """The steps that vanilla takes over the same answer."""
        steps = tuple(
            Step(emitted=1, rows=1, before=before, times=1) for before in range(self.num_tokens)
        )
        return Walk(self.prompt, self.prompt_tokens, steps)


def mat(walks: Sequence[Walk]) -> float:
    """Compute the mean accepted tokens: emitted tokens / steps, over all answers."""
    num_tokens = sum(walk.num_tokens for walk in walks)
    num_steps = sum(walk.num_steps for walk in walks)
    return num_tokens / max(1, num_steps)
