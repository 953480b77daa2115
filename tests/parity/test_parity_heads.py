"""The methods with trained heads, compared step by step with the official implementations."""

import json
import math
import statistics
from typing import Any

import pytest
import torch

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State
from specbench.engine.sampler import Sampler
from specbench.registry import get
from specbench.types import Completion, Request, Sampling
from tests.methods.building import Recording, build_in
from tests.parity.golden import (
    EOS,
    FOLDER,
    complete_all,
    load_golden,
    mean_accepted,
    needs_parity,
    prompt_ids,
    target,
)

pytestmark = needs_parity

BUDGET = 128
LONGEST_STEP = 20
SMALL = {"total_tokens": 24, "top_k": 4, "depth": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "medusa": ("medusa", {}),
    "hydra": ("hydra", {}),
    "eagle": ("eagle", {}),
    "eagle2": ("eagle2", {"depth": 7}),  # made with eight levels, the default of EAGLE's class
    "eagle2_d5": ("eagle2", {"depth": 5}),
    "eagle2_specbench": ("eagle2", {"depth": 5}),
    "eagle2_t24k4d3": ("eagle2", SMALL),
    "eagle3": ("eagle3", {}),
    "eagle3_d5": ("eagle3", {"depth": 5}),
    "eagle3_t24k4d3": ("eagle3", SMALL),
    "medusa_typical": ("medusa", {"acceptance": "typical"}),
}
"""The method and its options, by golden file."""


def build(name: str) -> Drafter:
    method, options = CASES[name]
    return build_in(FOLDER / str(get(method).weights), method, target(), **options)


def completions(name: str) -> list[Completion]:
    """All prompts, with a budget that covers the official code's last step, which exceeds its
    budget.
    """
    method, options = CASES[name]
    return complete_all(
        method,
        get(method).weights,
        max_new_tokens=BUDGET + LONGEST_STEP,
        temperature=0.7 if name == "medusa_typical" else 0.0,
        **options,
    )


def official_steps(done: Completion) -> list[int]:
    """The accept lengths up to the last step of the official loop."""
    lengths: list[int] = []
    for length in done.accept_lengths:
        lengths.append(length)
        if sum(lengths) > BUDGET:
            break
    return lengths


def to_eos(token_ids: list[int]) -> list[int]:
    return token_ids[: token_ids.index(EOS) + 1] if EOS in token_ids else token_ids


@pytest.mark.parametrize("name", CASES)
def test_the_tokens_of_every_step_match_the_official_code(name: str) -> None:
    for done, golden in zip(completions(name), load_golden(name), strict=True):
        our_ids, official_ids = to_eos(list(done.token_ids)), to_eos(golden.output_ids)
        count = min(len(our_ids), len(official_ids))
        assert count >= min(BUDGET, len(official_ids)), golden.id
        assert our_ids[:count] == official_ids[:count], golden.id
        steps, official = official_steps(done), golden.accept_lengths
        count = min(len(steps), len(official))
        if EOS in golden.output_ids or EOS in done.token_ids:  # EOS cuts the last step
            count -= 1
        assert steps[:count] == official[:count], golden.id
        # Our bonus token may be the end token one step before it is their step's first token.
        assert count >= len(official) - 2, golden.id


@pytest.mark.parametrize(
    "name",
    ["medusa", "eagle", "eagle2", "eagle2_d5", "eagle2_t24k4d3",
     "eagle3", "eagle3_d5", "eagle3_t24k4d3"],
)  # fmt: skip
def test_the_first_trees_equal_the_official_ones(name: str) -> None:
    golden = json.loads((FOLDER / "golden" / f"{name}_trees.json").read_text())
    prompts = dict(zip((row.id for row in load_golden("vanilla")), prompt_ids(), strict=True))
    for id, steps in golden.items():
        recording = Recording(build(name))
        decode(target(), recording, Request(prompts[id], 32))
        for (text, tree), step in zip(recording.trees, steps, strict=False):
            assert len(text) - 1 == step["prefix_len"]
            assert tree.tokens.tolist() == step["draft_tokens"]
            assert tree.layout.parents.tolist() == [0, *step["parents"][1:]]
            assert tree.layout.depths.tolist() == step["position_offsets"]
            assert tree.layout.ancestors.int().tolist() == step["tree_mask"]


@pytest.mark.parametrize("name", ["eagle2", "eagle3"])
@torch.inference_mode()
def test_the_first_draft_has_the_official_numbers(name: str) -> None:
    numerics = json.loads((FOLDER / "golden" / "numerics.json").read_text())
    golden, prompt = numerics[name], prompt_ids()[0]
    drafter: Any = build(name)
    with target().capture(drafter.needs):
        prefill = target().prefill(prompt)
        state = State(Request(prompt, 8), Sampler(Sampling(), torch.device("cpu"), 0), limit=8)
        state.append(int(prefill.logits.argmax()))
        drafter.start(state, prefill)
    assert_near(prefill.logits[0], numerics["target"]["logits_last"])
    last = torch.tensor([len(prompt) - 1])
    features = drafter.model.features(drafter.captured(prefill), last)
    assert_near(features[0], golden["draft_input_features_last_pos"])
    _, hidden = drafter.feed(*drafter.draft_inputs(state), cache_span=drafter.cache_span(state))
    assert_near(hidden[0], golden["draft_first_out_hidden_last_pos"])
    drafter._pool.start(torch.tensor([state.token_ids[-1]]))
    first_scores, _ = drafter._candidates(hidden)  # log-probabilities, less a tiny penalty
    assert_near(first_scores[0], golden["level1_topk_logprob"])
    best = drafter.model.logits(hidden)[0].topk(10).indices
    assert best.tolist() == golden["level1_topk_head_index"]
    tree = drafter.propose(state)
    assert tree.tokens.tolist() == golden["tree_tokens"]
    assert tree.layout.depths.tolist() == golden["tree_depth"]
    scores = torch.cat(drafter._pool._scores)
    kept = scores.topk(60).indices.sort().values
    assert (kept - 1).tolist()[1:] == golden["flat_score_index"]
    assert_near(scores[kept][1:], golden["tree_cum_logprob"][1:])


def assert_near(our_numbers: torch.Tensor, official_numbers: list[float]) -> None:
    torch.testing.assert_close(
        our_numbers.double(), torch.tensor(official_numbers).double(), atol=2e-4, rtol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eagle", "eagle2", "eagle3"])
def test_sampling_accepts_as_many_tokens_as_the_official_code(name: str) -> None:
    """At temperature 1, the mean of two seeds is within three standard errors of the official mean.

    The official mean is over eight seeds, which also show how much the mean of a seed varies.
    """
    golden = json.loads((FOLDER / "golden" / "temp1.json").read_text())[name]
    drafter, our_mats = build(name), []
    for seed in range(2):
        requests = (
            Request(ids, BUDGET + LONGEST_STEP, Sampling(1.0), frozenset({EOS}), 100 * i + seed)
            for i, ids in enumerate(prompt_ids())
        )
        done = [decode(target(), drafter, request) for request in requests]
        our_mats.append(mean_accepted([official_steps(answer) for answer in done]))
    official_mats = golden["per_seed"]
    error = statistics.stdev(official_mats) * math.sqrt(1 / len(our_mats) + 1 / len(official_mats))
    assert abs(statistics.mean(our_mats) - statistics.mean(official_mats)) < 3 * error
