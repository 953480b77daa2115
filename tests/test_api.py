"""specbench from Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import specbench
from specbench.errors import UserError
from tests.support.checkpoint import save_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("api") / "target")


def test_a_loaded_method_generates_what_vanilla_does_and_tells_steps_and_times(
    model: Path,
) -> None:
    plain = specbench.load(str(model), template="none").generate("ab ab ab", max_new_tokens=20)
    quick = specbench.load(str(model), "pld:ngram=2,num_tokens=4", template="none").generate(
        "ab ab ab", max_new_tokens=20
    )
    assert quick.token_ids == plain.token_ids
    assert quick.text == plain.text
    assert plain.mean_accepted_tokens == 1.0
    assert quick.num_steps <= plain.num_steps
    assert quick.completion.prefill_s > 0 and quick.tokens_per_s > 0


def test_input_ids_are_used_as_they_are(model: Path) -> None:
    loaded = specbench.load(str(model), template="none")
    by_text = loaded.generate("abc", max_new_tokens=4)
    for ids in (by_text.prompt_ids, torch.tensor([by_text.prompt_ids])):
        assert loaded.generate(input_ids=ids, max_new_tokens=4).token_ids == by_text.token_ids


def test_sampling_follows_the_seed(model: Path) -> None:
    loaded = specbench.load(str(model), template="none")
    one, same, other = (
        loaded.generate("abc", temperature=0.9, top_p=0.9, top_k=50, max_new_tokens=24, seed=seed)
        for seed in (1, 1, 2)
    )
    assert one.token_ids == same.token_ids != other.token_ids


def test_neither_or_both_inputs_and_two_methods_are_refused(model: Path) -> None:
    loaded = specbench.load(str(model), template="none")
    with pytest.raises(UserError, match="takes a prompt"):
        loaded.generate()
    with pytest.raises(UserError, match="takes a prompt"):
        loaded.generate("a", input_ids=[1])
    with pytest.raises(UserError, match="2 prompts"):
        loaded.generate(input_ids=torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(UserError, match="names 2 methods"):
        specbench.load(str(model), "pld,lookahead")
