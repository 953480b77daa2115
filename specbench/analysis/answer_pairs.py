"""Pair a method's answers with vanilla's to the same requests, in a table for `factors`.

Every source of answers fills the same columns. A number that a source lacks is NaN: an imported
file may have only a total time, or no steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from specbench.analysis.stats.arrays import BoolArray, FloatArray, IntArray
from specbench.types import RequestKey

Arithmetic = Literal["tasks", "totals", "rates", "ratios"]
"""The way in which a source of answers averages the number that it prints:

- tasks: the mean over tasks of each task's speedup, as reports do,
- totals: the speedup from the sums of all tokens and of all seconds,
- rates: the method's mean tokens/s over questions / vanilla's mean (the published way),
- ratios: the mean over questions of the method's tokens/s / vanilla's.

A question is a prompt in one pass, with all its turns.
"""


class PromptTurn(NamedTuple):
    """A turn of a prompt, in any pass, at any temperature and load."""

    task: str
    sample_id: str
    turn: int


def prompt_turn(request: RequestKey) -> PromptTurn:
    """Reduce a request to its prompt and turn."""
    return PromptTurn(request.task, request.sample_id, request.turn)


class Answers(NamedTuple):
    """Counts and seconds of answers. Each field is an array [requests]. NaN means unknown."""

    tokens: FloatArray
    """The tokens, counted by our rule."""
    wall_s: FloatArray
    """The seconds of the whole request."""
    decode_s: FloatArray
    """Seconds after the first token. If any is unknown, the cost of a step includes the prefill."""
    steps: FloatArray
    """The forward passes of the target after the prefill. Vanilla has one per emitted token."""
    first_tokens: FloatArray
    """The tokens that the prefill emitted. 0 if the source counts the prefill as a step."""
    source_tokens: FloatArray
    """The tokens, counted by the source's rule; NaN if the source counts as we do."""
    block_s: FloatArray
    """The answer's part of the seconds that a server took for a block, a group of requests."""

    @property
    def counted_tokens(self) -> FloatArray:
        """The tokens, counted by the source's rule."""
        return np.where(np.isnan(self.source_tokens), self.tokens, self.source_tokens)

    @property
    def emitted(self) -> FloatArray:
        """The tokens that steps emitted, counted by our rule."""
        return self.tokens - self.first_tokens


def one_per_second(number: int) -> Answers:
    """Make a baseline with this number of answers. Each has one token, one step and one second.

    Speedups relative to it are tokens/s, and the cost of a step is in seconds.
    """
    ones = np.ones(number)
    return Answers(ones, ones, ones, ones, 0 * ones, ones, ones)


@dataclass(frozen=True, slots=True, eq=False)
class AnswerPairs:
    """The answers of a method at one temperature and load, and vanilla's to the same requests."""

    requests: Sequence[RequestKey]
    """The request of each row."""
    method: Answers
    """The method's answers [requests]."""
    vanilla: Answers
    """Vanilla's answers [requests], or `one_per_second` without a baseline."""
    units: IntArray
    """The number of each row's pass, or of its run in a pool [requests]."""
    has_baseline: bool = True
    """True if `vanilla` has real answers. If False, the printed number is tokens/s, not a speedup.
    """
    arithmetic: Arithmetic = "tasks"
    """The way in which the source averages the printed number."""
    step_unit_s: float = 1.0
    """The unit in which the time of a step is shown, in seconds."""

    @property
    def turns(self) -> list[PromptTurn]:
        """The prompt and turn of each row."""
        return [*map(prompt_turn, self.requests)]

    @property
    def are_blocks_known(self) -> bool:
        """True if the seconds of a server's blocks are known for all answers."""
        block_s = np.concatenate([self.method.block_s, self.vanilla.block_s])
        return not np.isnan(block_s).any()

    def where(self, is_kept: BoolArray) -> AnswerPairs:
        """Select the rows for which `is_kept` [requests] is True."""
        return replace(
            self,
            requests=[self.requests[row] for row in np.flatnonzero(is_kept).tolist()],
            method=Answers(*(column[is_kept] for column in self.method)),
            vanilla=Answers(*(column[is_kept] for column in self.vanilla)),
            units=self.units[is_kept],
        )
