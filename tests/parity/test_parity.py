"""The methods without a trained head, against the official implementations.

`accept_lengths.json` holds accept lengths on the golden prompts for the methods beyond the nine of
the papers. They are those of the official drafting code, which was given each prompt with its first
output token: Spec-Bench's inference_recycling.py (a new table per prompt, and one table for all),
vLLM's n-gram proposer, ArcticInference's suffix_tree.cc, SAM-Decoding's samd/draft.py (both tables)
and REST's DraftRetriever 0.1.0. REST draws among equally frequent nodes: 15 runs reached a MAT of
2.612 to 2.626, and the stored one has 2.621.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.methods.shared.datastore import Datastore
from specbench.models.cards import find_model
from specbench.models.chat import load_codec
from specbench.types import Completion
from tests.parity.golden import (
    FOLDER,
    complete_all,
    load_golden,
    mean_accepted,
    needs_parity,
    prompt_ids,
)

pytestmark = needs_parity

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vanilla": ("vanilla", {}),
    "pld": ("pld", {}),
    "pld_n2k5": ("pld", {"ngram": 2, "num_tokens": 5}),
    "sps": ("sps", {}),
    "sps_const4": ("sps", {"num_tokens": 4, "schedule": "constant"}),
    "lookahead": ("lookahead", {}),
    "lookahead_l4w5g3": ("lookahead", {"level": 4, "window": 5, "guesses": 3}),
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
"""The method and its options, by the name of the official outputs."""
BOUNDS = {
    "pld": (0.99, 1.01), "sps": (0.95, 1.05), "sps_const4": (0.95, 1.05),
    "lookahead": (0.97, 1.2), "lookahead_l4w5g3": (0.97, 1.2),
}  # fmt: skip
"""The allowed ratios of our mean accepted tokens to the official mean, if not 0.97 to 1.03."""


@pytest.fixture(scope="module")
def datastore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of the official run: every other prompt with its answer."""
    path = tmp_path_factory.mktemp("rest") / "store.safetensors"
    texts = zip(prompt_ids(), load_golden("vanilla"), strict=True)
    Datastore.build([[*prompt, *golden.output_ids] for prompt, golden in texts][::2]).save(path)
    return path


LATER: dict[str, list[list[int]]]
LATER = json.loads(Path(__file__).with_name("accept_lengths.json").read_text())
"""The official accept lengths of the later methods."""


def official(name: str) -> list[list[int]]:
    return LATER.get(name) or [golden.accept_lengths for golden in load_golden(name)]


def completions(name: str, datastore: Path) -> list[Completion]:
    method, options = CASES[name]
    return complete_all(method, {"sps": "draft", "rest": str(datastore)}.get(method), **options)


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_mean_accepted_tokens_match_the_official_code(
    name: str, datastore: Path
) -> None:
    """Lookahead may accept more, because the official match counter stops a token early."""
    answers = completions(name, datastore)
    goldens = load_golden("vanilla" if name in LATER else name)
    assert [list(done.token_ids) for done in answers] == [golden.output_ids for golden in goldens]
    our_mat = mean_accepted([done.accept_lengths for done in answers])
    low, high = BOUNDS.get(name, (0.97, 1.03))
    assert low <= our_mat / mean_accepted(official(name)) <= high


@pytest.mark.parametrize("name", ["pld", "pld_n2k5", "sps_const4"])
def test_each_step_accepts_as_many_after_an_official_first_step_without_drafts(
    name: str, datastore: Path
) -> None:
    """The official code drafts in the forward of the prompt. Ours starts after it."""
    both = zip(completions(name, datastore), official(name), strict=True)
    pairs = [
        (list(done.accept_lengths), official_lengths[1:])
        for done, official_lengths in both
        if official_lengths[0] == 1
    ]
    assert pairs
    assert all(our_lengths == official_lengths for our_lengths, official_lengths in pairs)


@pytest.mark.parametrize("name", ["ngram_vllm_1to3", "ngram_vllm_2to4"])
def test_each_step_accepts_as_many_as_in_the_official_code(name: str, datastore: Path) -> None:
    assert [list(done.accept_lengths) for done in completions(name, datastore)] == official(name)


def test_texts_become_the_token_ids_that_the_official_code_was_given() -> None:
    folder = FOLDER / "target"
    codec = load_codec(folder, find_model(str(folder)), "none")
    lines = (FOLDER / "prompts.jsonl").read_text().strip().split("\n")
    texts = [json.loads(line)["text"] for line in lines]
    our_ids = [codec.render([{"role": "user", "content": text}]) for text in texts]
    assert our_ids == prompt_ids()
    assert codec.eos_ids == {2}
