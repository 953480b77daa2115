"""Compare vanilla's step with a plain step, because a slow baseline would raise every speedup."""

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
"""The fewest turns. In a turn, the request is answered once by vanilla and once by plain steps."""
MOST_TURNS = 25
"""Most turns."""
TURN_SECONDS = 0.5
"""Seconds after which no new turn begins, once `LEAST_TURNS` are done."""


class OneRow(Drafter):
    """Proposes no tokens: its step computes only the row of the pending token."""

    tree_sizes = (1,)

    def propose(self, state: State) -> DraftTree:
        return state.chain()


def with_vanilla_ratio(
    roofline: RooflineHeader, target: Target, vanilla: Drafter, request: Request
) -> RooflineHeader:
    """The header with one more ratio, the time of vanilla's step / the time of a plain one-row
    step.

    Vanilla and plain steps take turns at the same request, so that a change of the machine's speed
    affects both. Each turn gives a ratio, and the median ratio is added to the header. If steps are
    CUDA graphs, nothing is measured: the plain steps would need separate graphs. Nothing is
    measured either if the context has no room for a step after the prompt.

    Args:
        roofline: the header with the ratios so far (`vanilla_ratios`). Before the run there are
            none, and after it there is at most one.
        target: the loaded model.
        vanilla: the run's drafter of the baseline.
        request: has a prompt like the prompts of the run.
    """
    # Static: steps are CUDA graphs. A completion with a step has at least two new tokens.
    if target.execution.is_static or len(request.prompt_ids) + 2 > target.context:
        return roofline
    short_request = dataclasses.replace(request, max_new_tokens=TURN_TOKENS, eos_ids=frozenset())
    one_row = OneRow()
    ratios: list[float] = []  # one per turn
    began_s = perf_counter()
    while len(ratios) < LEAST_TURNS or (
        len(ratios) < MOST_TURNS and perf_counter() - began_s < TURN_SECONDS
    ):
        try:
            vanilla_s = _step_s(decode(target, vanilla, short_request))
            ratios.append(vanilla_s / _step_s(decode(target, one_row, short_request)))
        # A clock that went back, or logits that are NaN: the run's records report these, too. Other
        # errors are not caught.
        except (ClockError, NonFiniteError):
            return roofline
    return replace(roofline, vanilla_ratios=(*roofline.vanilla_ratios, round(median(ratios), 4)))


def _step_s(completion: Completion) -> float:
    """Mean seconds of a completion's steps."""
    return completion.decode_s / len(completion.accept_lengths)
