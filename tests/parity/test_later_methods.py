"""The training-free methods after the papers' nine, against what their official code accepts.

`accept_lengths.json` holds the accept lengths that the official drafting code reached on the golden
prompts, whose first output token it was given with the prompt: Spec-Bench's inference_recycling.py
(a new table per prompt, and one table for all), vLLM's n-gram proposer,
ArcticInference's suffix_tree.cc and SAM-Decoding's samd/draft.py (both tables).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specbench.types import Completion
from tests.parity.golden import complete_all, load_golden, mean_accepted, needs_parity

pytestmark = needs_parity

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "recycling": ("recycling", {}),
    "recycling_run": ("recycling", {"scope": "run"}),
    "ngram_vllm_1to3": ("pld", {"allow_shorter": True}),
    "ngram_vllm_2to4": (
        "pld",
        {"min_ngram": 2, "ngram": 4, "num_tokens": 5, "allow_shorter": True},
    ),
    "sam": ("sam", {}),
    "sam_run": ("sam", {"scope": "run"}),
    "suffix": ("suffix", {}),
    "suffix_run": ("suffix", {"scope": "run"}),
    "suffix_tree": ("suffix", {"shape": "tree"}),
    "suffix_f4": (
        "suffix",
        {"depth": 64, "num_tokens": 64, "factor": 4.0, "offset": 1.0, "min_prob": 0.05},
    ),
}
"""Name in accept_lengths.json -> method and options."""
EXACT = ["ngram_vllm_1to3", "ngram_vllm_2to4"]


@cache
def official(name: str) -> list[list[int]]:
    path = Path(__file__).parent / "accept_lengths.json"
    lengths: list[list[int]] = json.loads(path.read_text())[name]
    return lengths


def completions(name: str) -> list[Completion]:
    method, options = CASES[name]
    return complete_all(method, **options)


@pytest.mark.parametrize("name", CASES)
def test_the_tokens_are_vanillas(name: str) -> None:
    for done, golden in zip(completions(name), load_golden("vanilla"), strict=True):
        assert list(done.token_ids) == golden.output_ids, golden.id


@pytest.mark.parametrize("name", CASES)
def test_mean_accepted_tokens_are_those_of_the_official_code(name: str) -> None:
    ours = mean_accepted([done.accept_lengths for done in completions(name)])
    assert ours == pytest.approx(mean_accepted(official(name)), rel=0.03)


@pytest.mark.parametrize("name", EXACT)
def test_each_step_accepts_as_many_as_in_the_official_code(name: str) -> None:
    assert [list(done.accept_lengths) for done in completions(name)] == official(name)
