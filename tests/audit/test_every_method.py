"""The contract of every registered method, including installed plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.engine.tree import padded_size
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


def test_the_count_of_a_completion_adds_up(target: Target, drafter: Drafter) -> None:
    done = complete(target, drafter, prompts()[0])
    assert 1 + sum(done.accept_lengths) == done.num_tokens
    assert all(1 <= a <= n for a, n in zip(done.accept_lengths, done.num_nodes, strict=True))


def test_a_prompt_leaves_no_state_for_the_next_one(target: Target, drafter: Drafter) -> None:
    first, second = prompts()[:2]
    fresh = complete(target, drafter, second)
    complete(target, drafter, first)
    again = complete(target, drafter, second)
    assert (again.token_ids, again.steps) == (fresh.token_ids, fresh.steps)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=["greedy", "sampling"])
def test_the_size_of_every_tree_is_known_beforehand(
    target: Target, drafter: Drafter, sampling: Sampling
) -> None:
    budget, found = 60, set()
    for prompt in prompts()[1::2]:  # one that repeats itself, and one that does not
        found |= set(complete(target, drafter, prompt, sampling=sampling).num_nodes)
    if drafter.has_fixed_size:
        assert len(found) == 1
    known = drafter.trees_to_record(budget, target.sampler(sampling, seed=0))
    sizes = {padded_size(tree.num_nodes) for tree in known}
    assert drafter.has_fixed_size or set(map(padded_size, found)) <= sizes


def test_the_same_seed_gives_the_same_tokens(target: Target, drafter: Drafter) -> None:
    draws = [
        complete(target, drafter, prompts()[1], sampling=Sampling(1.0), seed=seed)
        for seed in (5, 5, 6)
    ]
    assert draws[0].token_ids == draws[1].token_ids != draws[2].token_ids


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_a_budget_is_never_exceeded(target: Target, drafter: Drafter, budget: int) -> None:
    done = complete(target, drafter, prompts()[3], max_new_tokens=budget, eos_ids=frozenset())
    assert done.num_tokens == budget
    assert done.stop_reason == "budget"


def test_nothing_after_eos_is_emitted(target: Target, drafter: Drafter) -> None:
    free = complete(target, drafter, prompts()[3], eos_ids=frozenset())
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
