"""Answers of a method, each with vanilla's to the same request: the table that `factors` explains.

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
"""The source's way of averaging the number that it prints:

- tasks: the mean over tasks of each task's speedup, as reports do,
- totals: all tokens and all seconds as one,
- rates: the method's mean tokens/s over questions / vanilla's mean (the published way),
- ratios: the mean over questions of the quotient of the two rates.

A question has all turns of a prompt in one pass.
"""


class PromptTurn(NamedTuple):
    """A turn of a prompt, whatever pass, temperature and load it was answered in."""

    task: str
    sample_id: str
    turn: int


def prompt_turn(request: RequestKey) -> PromptTurn:
    """The prompt and turn of a request."""
    return PromptTurn(request.task, request.sample_id, request.turn)


class Answers(NamedTuple):
    """Counts and seconds of answers: [requests] each. NaN is unknown."""

    tokens: FloatArray
    """Tokens, by our counting rule."""
    wall_s: FloatArray
    """Seconds of the whole request."""
    decode_s: FloatArray
    """Seconds after the first token. If unknown for any answer, cost includes the prefill."""
    steps: FloatArray
    """Forward passes of the target after the prefill. Vanilla has one per emitted token."""
    first_tokens: FloatArray
    """Tokens that no step emitted: the prefill's. 0 if the source counts the prefill as a step."""
    source_tokens: FloatArray
    """Tokens, by the counting rule of the source; NaN if the source counts as we do."""
    block_s: FloatArray
    """The answer's part of the seconds that a server took for all requests of a block."""

    @property
    def counted_tokens(self) -> FloatArray:
        """Tokens by the counting rule of the source."""
        return np.where(np.isnan(self.source_tokens), self.tokens, self.source_tokens)

    @property
    def emitted(self) -> FloatArray:
        """Tokens that steps emitted."""
        return self.tokens - self.first_tokens


def one_per_second(number: int) -> Answers:
    """Answers of one token, one step and one second each, in place of a baseline.

    Speedups over it are tokens/s, and the cost of a step is in seconds.
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
    """The pass, or the run of a pool, of each row [requests]."""
    has_baseline: bool = True
    """True if `vanilla` has real answers. If not, tokens/s or a throughput is printed."""
    arithmetic: Arithmetic = "tasks"
    """The average behind the printed number."""
    step_unit_s: float = 1.0
    """Seconds of the unit in which steps are shown."""

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
        """The rows that are kept [requests]."""
        return replace(
            self,
            requests=[self.requests[row] for row in np.flatnonzero(is_kept).tolist()],
            method=Answers(*(column[is_kept] for column in self.method)),
            vanilla=Answers(*(column[is_kept] for column in self.vanilla)),
            units=self.units[is_kept],
        )
