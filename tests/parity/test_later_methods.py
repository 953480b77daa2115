"""The training-free methods after the papers' nine, against what their official code accepts.

`accept_lengths.json` holds the accept lengths that the official drafting code reached on the
golden prompts, whose first output token it was given with the prompt: Spec-Bench's
inference_recycling.py (a new table per prompt, and one table for all), vLLM's n-gram proposer,
ArcticInference's suffix_tree.cc, SAM-Decoding's samd/draft.py (both tables) and REST's
DraftRetriever 0.1.0. That one draws among equally frequent nodes: 15 runs reached a MAT of
2.612 to 2.626, and the one stored has 2.621.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specbench.methods._datastore import Datastore
from specbench.types import Completion
from tests.parity.golden import complete_all, load_golden, mean_accepted, needs_parity, prompt_ids

pytestmark = needs_parity

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "recycling": ("recycling", {}),
    "recycling_run": ("recycling", {"scope": "run"}),
    "ngram_vllm_1to3": ("pld", {"allow_shorter": True}),
    "ngram_vllm_2to4": (
        "pld",
        {"min_ngram": 2, "ngram": 4, "num_tokens": 5, "allow_shorter": True},
    ),
    "rest": ("rest", {}),
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


@pytest.fixture(scope="module")
def datastore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of the official run: every other prompt with its answer."""
    path = tmp_path_factory.mktemp("rest") / "store.safetensors"
    texts = zip(prompt_ids(), load_golden("vanilla"), strict=True)
    Datastore.build([[*prompt, *golden.output_ids] for prompt, golden in texts][::2]).save(path)
    return path


@cache
def official(name: str) -> list[list[int]]:
    path = Path(__file__).parent / "accept_lengths.json"
    lengths: list[list[int]] = json.loads(path.read_text())[name]
    return lengths


def completions(name: str, datastore: Path) -> list[Completion]:
    method, options = CASES[name]
    return complete_all(method, str(datastore) if method == "rest" else None, **options)


@pytest.mark.parametrize("name", CASES)
def test_the_tokens_are_vanillas(name: str, datastore: Path) -> None:
    for done, golden in zip(completions(name, datastore), load_golden("vanilla"), strict=True):
        assert list(done.token_ids) == golden.output_ids, golden.id


@pytest.mark.parametrize("name", CASES)
def test_mean_accepted_tokens_are_those_of_the_official_code(name: str, datastore: Path) -> None:
    ours = mean_accepted([done.accept_lengths for done in completions(name, datastore)])
    assert ours == pytest.approx(mean_accepted(official(name)), rel=0.03)


@pytest.mark.parametrize("name", EXACT)
def test_each_step_accepts_as_many_as_in_the_official_code(name: str, datastore: Path) -> None:
    assert [list(done.accept_lengths) for done in completions(name, datastore)] == official(name)
