"""The contract of every registered method, including installed plug-ins."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest

from specbench.audit import contract
from specbench.audit.answer_ends import ends
from specbench.audit.contract import run_contract
from specbench.audit.subject import Subject
from specbench.engine.target import Target
from specbench.registry import names
from tests.methods.building import build_in
from tests.support.models import generated, prompts, random_llama, random_target, save
from tests.support.weights import build

EOS = frozenset({2})


@pytest.fixture(scope="module")
def target() -> Target:
    return random_target(layers=8)


@cache
def expected(target: Target, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The 60 greedy tokens that transformers' own loop gives, computed once for all methods."""
    return tuple(generated(target.model, prompt, 60, eos_id=2))


@pytest.mark.parametrize("name", names())
def test_greedy_output_equals_that_of_generate(name: str, target: Target, tmp_path: Path) -> None:
    subject = Subject(target, partial(build, name, target, tmp_path), prompts(), budget=60)
    for prompt in subject.prompts:
        done = subject.complete(subject.drafter, prompt, eos_ids=EOS)
        assert done.token_ids == expected(target, prompt)


@pytest.mark.parametrize("name", names())
def test_counts_ends_state_seeds_and_sizes_hold(name: str, target: Target, tmp_path: Path) -> None:
    two_prompts = prompts()[1::2]  # one that repeats itself, and one that does not
    subject = Subject(target, partial(build, name, target, tmp_path), two_prompts, budget=24)
    kinds = [contract.greedy, ends, contract.repeats, contract.sizes]
    audit = run_contract(name, subject, contract=kinds)
    assert audit.fault == ""
    assert audit.failures == ()


def test_the_context_ends_a_completion(tmp_path: Path) -> None:
    num_positions = 32
    target = random_target(layers=3, max_position_embeddings=num_positions)
    prompt = prompts()[1]
    for name in names():
        subject = Subject(target, partial(build, name, target, tmp_path), [prompt])
        done = subject.complete(subject.drafter, prompt)
        assert done.num_tokens == num_positions - len(prompt), name
        assert done.stop_reason == "length", name


def test_a_draft_model_may_have_a_shorter_context_than_the_prompt(
    target: Target, tmp_path: Path
) -> None:
    draft = save(random_llama(layers=2, seed=1, max_position_embeddings=32), tmp_path)
    subject = Subject(target, lambda: build_in(draft, "sps", target), prompts(), budget=60)
    prompt = prompts()[2]
    done = subject.complete(subject.drafter, prompt, eos_ids=EOS)
    assert done.token_ids == expected(target, prompt)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_sampled_tokens_and_draft_tokens_have_their_distributions(
    name: str, tmp_path: Path
) -> None:
    """A vocabulary so small that many draft tokens are accepted."""
    target = random_target(layers=2, vocab_size=7, max_position_embeddings=64)
    two_prompts = [(3, 4, 5, 6, 3, 4, 5, 6, 3, 4), (6, 5, 4, 3, 3)]
    subject = Subject(target, partial(build, name, target, tmp_path), two_prompts, budget=40)
    audit = run_contract(name, subject, contract=[contract.sampled])
    assert audit.fault == ""
    assert audit.failures == ()
