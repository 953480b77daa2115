"""Profiles above temperature 0: walks along drawn answers, expected steps of drawn chains."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specbench import run
from specbench.engine.decode import decode
from specbench.engine.sampler import Sampler
from specbench.methods.sps import next_length
from specbench.tune import mat, profile, replay
from specbench.tune.drafts import Draft, Outcome, shares
from specbench.tune.profile_file import Answer, AnswerHeader
from specbench.tune.replay import walk_of
from specbench.types import Request, Sampling
from tests.methods import test_peagle
from tests.support.methods import parse_methods
from tests.tune import WORK
from tests.tune.test_profile import chain, chains

VALUES = WORK | {"max_new_tokens": 40, "temperatures": 1.0}
DRAWN = "eagle2:depth=2,top_k=3", "medusa", "hydra", "pld"


def second_best(self: Sampler, probs: Tensor) -> Tensor:
    """The "drawn" token depends only on the distribution. It is the best token, or the second."""
    best, second = probs.topk(2).indices.unbind(1)
    return torch.where(best % 8 == 0, second, best)


@pytest.mark.slow
def test_a_walk_along_a_drawn_answer_has_the_steps_of_a_run_with_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "draw", second_best)
    profiled = profile("tiny", DRAWN, repeats=1, **VALUES)
    settings = ["eagle2:total_tokens=7,depth=1,top_k=2", *DRAWN]
    real = run("tiny", settings, output=tmp_path, settings="paper", repeats=1, **VALUES)
    greedy = profile("tiny", "pld", **VALUES | {"temperatures": 0.0})
    assert profiled.answers[0].token_ids != greedy.answers[0].token_ids
    for setting in settings:
        label = parse_methods([setting])[0].label
        by_prompt = {
            f"gsm8k/{record.key.sample_id}/0": record
            for record in real.records
            if record.key.method == label
        }
        for walk in replay(profiled, setting):
            record = by_prompt[walk.prompt]
            assert walk.accepts == record.accept_lengths, setting
            assert walk.nodes == record.num_nodes
            assert {*walk.chances} == {1}
    assert mat(replay(profiled, "medusa")) > 1.2


def test_several_seeds_give_several_answers_to_a_prompt() -> None:
    profiled = profile("tiny", "sps", **VALUES)
    assert len(profiled.answers) == 6
    assert len({answer.token_ids for answer in profiled.answers}) > 3
    chances = np.concatenate([answer.drafts["sps"]["token"] for answer in profiled.answers])
    assert len({*chances.tolist()}) > 20
    assert chances.min() >= 0 and 0.99 < chances.max() <= 1
    settings = [f"sps:num_tokens={num},schedule=constant" for num in (1, 3, 6)]
    mats = [mat(replay(profiled, setting)) for setting in settings]
    assert mats == sorted(mats)


@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
def test_expected_steps_are_those_of_all_outcomes(schedule: Any) -> None:
    """The expected values equal sums over all cases in which each token is accepted or not."""
    chances = [0.9, 0.25, 1.0, 0.5, 0.0, 0.7]
    num_first = 2
    end = len(chances) + 2

    def draft_at(answer: Answer, position: int, wanted: int | None) -> Draft:
        num = wanted or num_first
        drafted = chances[position - 1 : position - 1 + num]
        outcomes = [
            Outcome(num_accepted, chance, next_length(schedule, num, num_accepted))
            for num_accepted, chance in shares(drafted)
        ]
        return Draft(1 + num, outcomes)

    def rows_of_steps(is_accepted: tuple[bool, ...]) -> list[int]:
        position, num, rows = 1, num_first, list[int]()
        while position < end:
            rows.append(1 + num)
            drafted = is_accepted[position - 1 : position - 1 + num]
            num_accepted = [*drafted, False].index(False)
            position += num_accepted + 1
            num = next_length(schedule, num, num_accepted)
        return rows

    expected_steps, expected_rows = 0.0, 0.0
    for is_accepted in product([True, False], repeat=len(chances)):
        probability = 1.0
        for chance, is_kept in zip(chances, is_accepted, strict=True):
            probability *= chance if is_kept else 1 - chance
        rows = rows_of_steps(is_accepted)
        expected_steps += probability * len(rows)
        expected_rows += probability * sum(rows)

    answer = Answer(AnswerHeader("", 1, end, end, None, ""), (), (), {})
    walk = walk_of(answer, draft_at)
    assert walk.num_steps == pytest.approx(expected_steps)
    assert np.dot(walk.chances, walk.nodes) == pytest.approx(expected_rows)
    assert np.dot(walk.chances, walk.accepts) == pytest.approx(end - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mtp", "peagle"])
def test_expected_steps_of_a_drawn_chain_match_many_runs(name: str, tmp_path: Path) -> None:
    num_seeds = 60
    target, drafter = chain(name, tmp_path, 7)
    like = profile("tiny", "pld", **VALUES | {"limit": 1}).header
    prompt = test_peagle.PROMPTS[0]
    requests = [Request(prompt, 20, Sampling(0.7), seed=seed) for seed in range(num_seeds)]
    profiled = chains(name, target, drafter, requests, like)
    expected = [walk.num_steps for walk in replay(profiled, f"{name}:num_tokens=4")]
    drafter = chain(name, tmp_path, 4)[1]
    real = [len(decode(target, drafter, request).steps) for request in requests]
    standard_error = ((np.var(real) + np.var(expected)) / num_seeds) ** 0.5
    assert 6 < np.mean(expected) < 18
    assert abs(np.mean(real) - np.mean(expected)) < 3 * standard_error
