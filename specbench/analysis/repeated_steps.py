"""Steps of answers to repeated requests at temperature 0, where equal answers take equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from specbench.log.header import RunHeader
from specbench.types import BASELINE, Record

LEAST_REQUESTS = 2
"""Fewest requests with fewer steps in later answers that prove that a method remembers."""
_BY_REQUEST = attrgetter("key.task", "key.sample_id", "key.turn")


def fewer_steps(records: Sequence[Record], header: RunHeader) -> dict[tuple[str, float], float]:
    """Steps in later passes / in the first, for methods whose fewer steps are proof of memory.

    The drafts of such a method depend on the prompt alone (`is_repeatable`), so at temperature 0 an
    equal answer takes equally many steps in every pass. Two requests with fewer steps in a later
    pass, and none with more, prove memory without a statistical test. Empty on a GPU, where a
    captured step may round differently. Also empty for runs of several parts or machines, which
    include pools (without a `uid`) and merged runs. The ratios are by method and temperature.
    """
    ratios: dict[tuple[str, float], float] = {}
    is_in_parts = header.origins or header.segments or header.workers or not header.uid
    if is_in_parts or header.environment.gpu(header.spec.values.device):
        return ratios
    for label, method in header.methods.items():
        if label == BASELINE or not method.is_repeatable:  # None in older runs
            continue
        answers = [
            record
            for record in records
            if record.is_ok and record.key.method == label and record.key.temperature == 0
        ]
        answers.sort(key=lambda record: (*_BY_REQUEST(record), record.key.repeat))
        num_fewer = num_more = first_steps = later_steps = 0
        for _, group in groupby(answers, key=_BY_REQUEST):
            first, *later = group  # the answers to one request, pass by pass
            for answer in later:
                if answer.token_ids != first.token_ids:
                    continue
                num_steps, num_before = len(answer.accept_lengths), len(first.accept_lengths)
                num_fewer += num_steps < num_before
                num_more += num_steps > num_before
                later_steps += num_steps
                first_steps += num_before
        if num_fewer >= LEAST_REQUESTS and not num_more:
            ratios[label, 0.0] = later_steps / first_steps
    return ratios
