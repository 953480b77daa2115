"""Compare vanilla's step with a step without any method: a slow baseline raises every speedup."""

from __future__ import annotations

import dataclasses
from statistics import median
from time import perf_counter

from msgspec.structs import replace

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.errors import ClockError, NonFiniteError
from specbench.log.backend import RooflineHeader
from specbench.types import Completion, Request

TURN_TOKENS = 9
"""Tokens of an answer: the prefill's, and one for each of eight steps."""
LEAST_TURNS = 3
"""Fewest turns of vanilla and of plain steps."""
MOST_TURNS = 25
TURN_SECONDS = 0.5
"""Seconds after which no new turn begins, once `LEAST_TURNS` are done."""


class OneRow(Drafter):
    """Proposes the pending token alone."""

    tree_sizes = (1,)

    def propose(self, state: State) -> DraftTree:
        return state.chain()


def with_vanilla_ratio(
    roofline: RooflineHeader, target: Target, vanilla: Drafter, request: Request
) -> RooflineHeader:
    """The header with one more ratio: time of vanilla's step / time of a step of one row.

    The ratio is the median over turns. The two take turns at one request, so that a change of the
    machine's speed slows or speeds both. With CUDA graphs nothing is measured: steps of one row
    would need graphs of their own.

    Args:
        roofline: has the ratios so far.
        target: the loaded model.
        vanilla: the run's drafter of the baseline.
        request: has a prompt like the run's.
    """
    if target.execution.is_static:
        return roofline
    request = dataclasses.replace(request, max_new_tokens=TURN_TOKENS, eos_ids=frozenset())
    one_row = OneRow()
    ratios: list[float] = []
    began = perf_counter()
    while len(ratios) < LEAST_TURNS or (
        len(ratios) < MOST_TURNS and perf_counter() - began < TURN_SECONDS
    ):
        try:
            vanilla_s = _step_s(decode(target, vanilla, request))
            ratios.append(vanilla_s / _step_s(decode(target, one_row, request)))
        except (ClockError, NonFiniteError):  # the records of the run report it, too
            return roofline
    return replace(roofline, vanilla_ratios=(*roofline.vanilla_ratios, round(median(ratios), 4)))


def _step_s(completion: Completion) -> float:
    """Seconds of a step."""
    return completion.decode_s / len(completion.accept_lengths)
