"""Find methods that remember answers: at temperature 0, equal answers should take equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from specbench.log.header import RunHeader
from specbench.types import BASELINE, Record

LEAST_ANSWERS = 2
"""The number of answers with fewer steps in later passes that prove that a method remembers."""
_BY_REQUEST = attrgetter("key.task", "key.sample_id", "key.turn")


def fewer_steps(records: Sequence[Record], header: RunHeader) -> dict[tuple[str, float], float]:
    """Find the methods that provably remember answers, each with a ratio of steps.

    The ratios are the steps in later passes / the steps in the first pass, by method and
    temperature (always 0). They cover methods whose drafts depend only on the prompt
    (`is_repeatable`), so equal answers take equally many steps in every pass. A method has
    memory if at least LEAST_ANSWERS answers of later passes need fewer steps than the equal answer
    of the first pass, and none needs more. This needs no statistical test.

    The result is empty on a GPU, since a CUDA graph may round differently. It is also empty for
    runs in several parts or on several machines, merged runs, and pools of runs (which have no
    `uid`).
    """
    ratios: dict[tuple[str, float], float] = {}
    # merged from runs, resumed on another machine, on a cluster, or a pool
    is_in_parts = header.origins or header.segments or header.workers or not header.uid
    if is_in_parts or header.environment.gpu(header.spec.values.device):
        return ratios
    for label, about in header.methods.items():  # label: the method with its options
        if label == BASELINE or not about.is_repeatable:  # None if unknown, as in older runs
            continue
        answers = [
            record
            for record in records
            if record.is_ok and record.key.method == label and record.key.temperature == 0
        ]
        answers.sort(key=lambda record: (*_BY_REQUEST(record), record.key.repeat))
        # Numbers of later answers with fewer and with more steps than the equal answer of the first
        # pass; and the steps of the first and of the later answers, summed over all such pairs.
        num_fewer = num_more = steps_of_first = steps_of_later = 0
        for _, request_answers in groupby(answers, key=_BY_REQUEST):
            first_answer, *later_answers = request_answers  # pass by pass
            for later_answer in later_answers:
                if later_answer.token_ids != first_answer.token_ids:
                    continue
                num_first_steps = len(first_answer.accept_lengths)  # an accept length per step
                num_later_steps = len(later_answer.accept_lengths)
                num_fewer += num_later_steps < num_first_steps
                num_more += num_later_steps > num_first_steps
                steps_of_later += num_later_steps
                steps_of_first += num_first_steps
        if num_fewer >= LEAST_ANSWERS and not num_more:
            ratios[label, 0.0] = steps_of_later / steps_of_first
    return ratios
