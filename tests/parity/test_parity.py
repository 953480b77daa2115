"""The methods without a trained head, against the official implementations."""

from typing import Any

import pytest

from specbench.models.cards import find_model
from specbench.models.chat import load_codec
from tests.parity.golden import (
    FOLDER,
    complete_all,
    load_golden,
    mean_accepted,
    needs_parity,
    prompt_ids,
)

pytestmark = needs_parity

CASES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "vanilla": ("vanilla", None, {}),
    "pld": ("pld", None, {}),
    "pld_n2k5": ("pld", None, {"ngram": 2, "num_tokens": 5}),
    "sps": ("sps", "draft", {}),
    "sps_const4": ("sps", "draft", {"num_tokens": 4, "schedule": "constant"}),
    "lookahead": ("lookahead", None, {}),
    "lookahead_l4w5g3": ("lookahead", None, {"level": 4, "window": 5, "guesses": 3}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_tokens_are_those_of_the_official_code(name: str) -> None:
    method, weights, options = CASES[name]
    for done, golden in zip(
        complete_all(method, weights, **options), load_golden(name), strict=True
    ):
        assert list(done.token_ids) == golden.output_ids, golden.id


@pytest.mark.parametrize("name", ["pld", "pld_n2k5", "sps_const4"])
def test_each_step_accepts_as_many_where_the_official_first_step_accepts_none(name: str) -> None:
    """The official code drafts in the prompt's forward; ours starts after it."""
    method, weights, options = CASES[name]
    pairs = [
        (done.accept_lengths, tuple(golden.accept_lengths[1:]))
        for done, golden in zip(
            complete_all(method, weights, **options), load_golden(name), strict=True
        )
        if golden.accept_lengths[0] == 1
    ]
    assert pairs
    assert all(ours == theirs for ours, theirs in pairs)


@pytest.mark.parametrize(("name", "low", "high"), [
    ("pld", 0.99, 1.01), ("sps", 0.95, 1.05), ("sps_const4", 0.95, 1.05),
    ("lookahead", 0.97, 1.2), ("lookahead_l4w5g3", 0.97, 1.2),
])  # fmt: skip
def test_mean_accepted_tokens_are_the_official_ones(name: str, low: float, high: float) -> None:
    """Lookahead may accept more: the official match counter stops a token early."""
    method, weights, options = CASES[name]
    ours = mean_accepted([done.accept_lengths for done in complete_all(method, weights, **options)])
    theirs = mean_accepted([golden.accept_lengths for golden in load_golden(name)])
    assert low <= ours / theirs <= high


def test_texts_become_the_token_ids_that_the_official_code_was_given() -> None:
    import json

    folder = FOLDER / "target"
    codec = load_codec(folder, find_model(str(folder)), "none")
    lines = (FOLDER / "prompts.jsonl").read_text().strip().split("\n")
    texts = [json.loads(line)["text"] for line in lines]
    ours = [codec.render([{"role": "user", "content": text}]) for text in texts]
    assert ours == prompt_ids()
    assert codec.eos_ids == {2}
