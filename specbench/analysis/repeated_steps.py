"""Steps of answers to repeated requests at temperature 0, where equal answers take equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from specbench.log.header import RunHeader
from specbench.types import BASELINE, Record

LEAST_ANSWERS = 2
"""Fewest answers of later passes with fewer steps that prove that a method remembers."""
_BY_REQUEST = attrgetter("key.task", "key.sample_id", "key.turn")


def fewer_steps(records: Sequence[Record], header: RunHeader) -> dict[tuple[str, float], float]:
    """The methods that provably remember answers: steps in later passes / in the first pass.

    The ratios are by method and temperature, which is 0. They cover methods whose drafts depend on
    the prompt alone (`is_repeatable`): an equal answer takes equally many steps in every pass. If
    LEAST_ANSWERS answers of later passes or more need fewer steps than the equal answer of the
    first pass, and none needs more, the method has memory, without a statistical test.

    Empty on a GPU, where a step as a CUDA graph may round differently. Also empty for runs of
    several parts or machines, merged runs, and pools of runs (which have no `uid`).
    """
    ratios: dict[tuple[str, float], float] = {}
    # merged from runs, resumed on another machine, on a cluster, or a pool
    is_in_parts = header.origins or header.segments or header.workers or not header.uid
    if is_in_parts or header.environment.gpu(header.spec.values.device):
        return ratios
    for label, about in header.methods.items():  # label: the method with its options
        if label == BASELINE or not about.is_repeatable:  # None: unknown, in older runs
            continue
        answers = [
            record
            for record in records
            if record.is_ok and record.key.method == label and record.key.temperature == 0
        ]
        answers.sort(key=lambda record: (*_BY_REQUEST(record), record.key.repeat))
        # Later answers with fewer and with more steps than the equal answer of the first pass, and
        # the sums of steps over all pairs of equal answers.
        num_fewer = num_more = steps_of_first = steps_of_later = 0
        for _, request_answers in groupby(answers, key=_BY_REQUEST):
            first_answer, *later_answers = request_answers  # pass by pass
            for later_answer in later_answers:
                if later_answer.token_ids != first_answer.token_ids:
                    continue
                num_first = len(first_answer.accept_lengths)  # an accept length per step
                num_later = len(later_answer.accept_lengths)
                num_fewer += num_later < num_first
                num_more += num_later > num_first
                steps_of_later += num_later
                steps_of_first += num_first
        if num_fewer >= LEAST_ANSWERS and not num_more:
            ratios[label, 0.0] = steps_of_later / steps_of_first
    return ratios
