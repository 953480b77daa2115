"""Tables of answers from rows, as a reader of another tool's file makes them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from specbench.analysis.answer_pairs import AnswerPairs, Answers, Arithmetic, one_per_second
from specbench.types import RequestKey

UNKNOWN = float("nan")


class Answer(NamedTuple):
    """A row of `Answers`."""

    tokens: float
    wall_s: float
    decode_s: float = UNKNOWN
    steps: float = UNKNOWN
    first_tokens: float = 1.0
    source_tokens: float = UNKNOWN
    block_s: float = UNKNOWN


def pair_answers(
    method: Mapping[RequestKey, Answer],
    vanilla: Mapping[RequestKey, Answer] | None,
    arithmetic: Arithmetic = "tasks",
) -> AnswerPairs:
    """The requests that a method and vanilla answered, or the method's if there is no
    baseline.
    """
    requests = [key for key in method if vanilla is None or key in vanilla]
    baseline = one_per_second(len(requests))
    if vanilla is not None:
        baseline = Answers(*np.array([vanilla[key] for key in requests]).T)
    return AnswerPairs(
        requests=requests,
        method=Answers(*np.array([method[key] for key in requests]).T),
        vanilla=baseline,
        units=np.array([key.repeat for key in requests], dtype=np.intp),
        has_baseline=vanilla is not None,
        arithmetic=arithmetic,
    )
