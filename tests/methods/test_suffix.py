"""Suffix decoding: what is drafted from which occurrences, and how far."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specbench.engine.accept import Sampler
from specbench.engine.drafter import BuildContext, State
from specbench.engine.target import Forward
from specbench.methods._occurrences import SEPARATOR, Occurrences
from specbench.registry import get, make_options
from specbench.types import Request, Sampling
from tests.support.models import random_target


def build(**options: str) -> Any:
    method = get("suffix")
    return method.build(make_options(method, options), BuildContext(random_target(layers=1)))


def start(drafter: Any, *text: int) -> State:
    state = State(Request(text[:-1], 8), Sampler(Sampling(), torch.device("cpu")), 8)
    state.append(text[-1])
    drafter.start(state, Forward(torch.zeros(1, 50)))
    return state


def drafted(*text: int, **options: str) -> tuple[list[int], list[int]]:
    drafter = build(**options)
    tree = drafter.propose(start(drafter, *text))
    return tree.tokens.tolist()[1:], tree.layout.parents.tolist()[1:]


def test_the_ends_of_longer_matches_are_among_those_of_shorter_ones() -> None:
    text = Occurrences()
    text.extend([3, 4, 5, 3, 4, SEPARATOR, 4, 3, 4])
    assert list(text.ends([9, 3, 4])) == [[2, 5, 7, 9], [2, 5, 9]]
    text.cut(5)
    assert list(text.ends([3, 4])) == [[2, 5], [2, 5]]
    assert list(text.ends([9])) == []


@pytest.mark.parametrize(
    ("text", "options", "tokens"),
    [
        ((3, 4, 5, 6, 7, 9, 3, 4, 5), {}, [6, 7, 9]),  # as many as match
        ((3, 4, 5, 6, 7, 9, 3, 4, 5), {"factor": "0.5"}, [6]),
        ((3, 4, 5, 6, 7, 9, 3, 4, 5), {"num_tokens": "2"}, [6, 7]),
        ((3, 4, 5, 6, 7, 9, 3, 4, 5), {"depth": "4"}, [6, 7]),
        ((5, 6, 5, 7, 5, 7, 5, 6, 5), {"depth": "3"}, [7]),  # 7 was seen twice first
        ((3, 4, 5, 6, 7, 9, 3, 4, 5), {"min_prob": "0.6"}, []),  # this very end counts too
        ((3, 4, 5), {}, []),
    ],
)
def test_a_draft_is_the_most_likely_continuation(
    text: tuple[int, ...], options: dict[str, str], tokens: list[int]
) -> None:
    assert drafted(*text, **options)[0] == tokens


def test_a_tree_holds_several_continuations() -> None:
    tokens, parents = drafted(3, 5, 6, 3, 5, 7, 3, 5, shape="tree")
    assert (tokens, parents) == ([6, 7], [0, 0])


def test_outputs_of_earlier_prompts_are_read_if_remembered() -> None:
    drafter = build(scope="run")
    start(drafter, 3, 4, 5).append(8)
    assert drafter.propose(start(drafter, 4, 5)).num_nodes == 1
    state = start(drafter, 3, 4, 5)
    state.append(8)
    state.append(9)
    drafter.remember()  # the output 5 8 9
    assert drafter.propose(start(drafter, 4, 5, 8)).tokens.tolist() == [8, 9]
    drafter.forget()
    assert drafter.propose(start(drafter, 4, 5, 8)).num_nodes == 1
