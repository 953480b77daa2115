"""The contract of every registered method, including installed plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specbench.audit import contract
from specbench.audit.contract import run_contract
from specbench.audit.subject import Subject
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.registry import names
from specbench.types import Completion, Request, Sampling
from tests.methods.building import build_in
from tests.support.distribution import p_value
from tests.support.models import generated, prompts, random_llama, random_target, save
from tests.support.weights import build


@pytest.fixture(scope="module")
def target() -> Target:
    return random_target(layers=8)


@pytest.fixture(params=names())
def drafter(request: pytest.FixtureRequest, target: Target, tmp_path: Path) -> Drafter:
    return build(request.param, target, tmp_path)


def complete(
    target: Target, drafter: Drafter, prompt: tuple[int, ...], **changes: Any
) -> Completion:
    values: dict[str, Any] = {"max_new_tokens": 60, "eos_ids": frozenset({2}), "seed": 3, **changes}
    return decode(target, drafter, Request(prompt, **values), is_checked=True)


@pytest.fixture(scope="module")
def expected(target: Target) -> Callable[[tuple[int, ...]], list[int]]:
    """The 60 greedy tokens of transformers' own loop, computed once for all methods."""
    return cache(lambda prompt: generated(target.model, prompt, 60, eos_id=2))


@pytest.mark.parametrize("prompt", prompts())
def test_greedy_output_is_that_of_generate(
    target: Target,
    drafter: Drafter,
    expected: Callable[[tuple[int, ...]], list[int]],
    prompt: tuple[int, ...],
) -> None:
    done = complete(target, drafter, prompt)
    assert list(done.token_ids) == expected(prompt)


@pytest.mark.parametrize("name", names())
def test_counts_ends_state_seeds_and_sizes_hold(name: str, target: Target, tmp_path: Path) -> None:
    two = prompts()[1::2]  # one that repeats itself, and one that does not
    subject = Subject(target, lambda: build(name, target, tmp_path), two, budget=32)
    kinds = [contract.greedy, contract.ends, contract.repeats, contract.sizes]
    found = run_contract(name, subject, checks=kinds)
    assert (found.fault, found.failures) == ("", ())


def test_nothing_after_eos_is_emitted(target: Target, drafter: Drafter) -> None:
    free = complete(target, drafter, prompts()[3], eos_ids=frozenset())
    assert (free.num_tokens, free.stop_reason) == (60, "budget")
    eos = free.token_ids[len(free.token_ids) // 2]
    done = complete(target, drafter, prompts()[3], eos_ids=frozenset({eos}))
    assert done.token_ids == free.token_ids[: free.token_ids.index(eos) + 1]
    assert done.stop_reason == "eos"


def test_the_context_ends_a_completion(tmp_path: Path) -> None:
    short = random_target(layers=3, max_position_embeddings=32)
    for name in names():
        done = complete(short, build(name, short, tmp_path), prompts()[1], eos_ids=frozenset())
        assert (done.num_tokens, done.stop_reason) == (32 - len(prompts()[1]), "length"), name


def test_a_draft_model_may_have_a_shorter_context_than_the_prompt(
    target: Target, expected: Callable[[tuple[int, ...]], list[int]], tmp_path: Path
) -> None:
    draft = save(random_llama(layers=2, seed=1, max_position_embeddings=32), tmp_path)
    done = complete(target, build_in(draft, "sps", target), prompts()[2])
    assert list(done.token_ids) == expected(prompts()[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_sampled_tokens_are_distributed_as_the_targets(name: str, tmp_path: Path) -> None:
    target = random_target(layers=2, vocab_size=7, max_position_embeddings=64)
    prompt = (3, 4, 5, 6, 3, 4, 5, 6, 3, 4)
    assert p_value(target, build(name, target, tmp_path), prompt, Sampling(1.0), draws=1000) > 1e-3
