"""Prompt lookup: which n-grams count, and which continuations."""

from __future__ import annotations

import pytest
import torch

from specbench.engine.accept import Sampler
from specbench.engine.drafter import BuildContext, State
from specbench.errors import UserError
from specbench.registry import get, make_options
from specbench.types import Request, Sampling
from tests.support.models import random_target

TEXT = (5, 6, 7, 8, 6, 7, 3, 9, 7)


def drafted(text: tuple[int, ...], **options: str) -> list[int]:
    method = get("pld")
    drafter = method.build(make_options(method, options), BuildContext(random_target(layers=1)))
    state = State(Request(text, 8), Sampler(Sampling(), torch.device("cpu")), 8)
    return drafter.propose(state).tokens.tolist()[1:]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (TEXT, {"num_tokens": "3"}, [8, 6, 7]),  # the earliest 7
        (TEXT, {"num_tokens": "7"}, []),
        (TEXT, {"num_tokens": "7", "allow_shorter": "true"}, [8, 6, 7, 3, 9, 7]),
        (TEXT, {"num_tokens": "3", "min_ngram": "2"}, []),
        ((*TEXT, 6, 7), {"num_tokens": "3", "min_ngram": "2"}, [8, 6, 7]),
    ],
)
def test_a_continuation_counts_if_its_ngram_and_it_are_long_enough(
    text: tuple[int, ...], options: dict[str, str], expected: list[int]
) -> None:
    assert drafted(text, **options) == expected


def test_a_shortest_ngram_above_the_longest_is_refused() -> None:
    with pytest.raises(UserError, match="n-grams of 4 to 3 tokens"):
        make_options(get("pld"), {"min_ngram": "4"})
