"""Energy per token, from a counter that advances in ticks of 40 J."""

import math
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from specbench.analysis.energy import (
    TICK_S,
    TOO_COARSE,
    joules_per_token,
    joules_per_token_alone,
)
from specbench.analysis.metrics import measure
from specbench.analysis.records import make_table
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.usage import MethodEnergy
from specbench.types import Record
from tests.analysis.run_factory import estimate, interval, make_run, number, record

POWER_W = 400.0
NUM_TOKENS = 40


def counter_j(time_s: float) -> float:
    """The counter of a card that draws 400 W, so it advances by 40 J every 0.1 s."""
    return POWER_W * TICK_S * math.floor(time_s / TICK_S)


def answers(seconds: float, num: int, seed: int = 0) -> list[Record]:
    """Answers of 40 tokens to different prompts, one after the other, at random times."""
    generator = np.random.default_rng(seed)
    records = []
    for sample in range(num):
        begin = generator.uniform(0, 100)
        length = seconds * generator.uniform(0.8, 1.2)
        energy_j = counter_j(begin + length) - counter_j(begin)
        answer = record("pld", str(sample), decode_s=length, accept_lengths=(1,) * (NUM_TOKENS - 1))
        records.append(replace(answer, energy_j=energy_j))
    return records


def measured(records: list[Record]) -> Value:
    table = make_table(records)
    return joules_per_token(table, np.arange(len(records)), Draws(Bootstrap(200), ""))


def test_long_answers_have_an_energy_whose_interval_holds_the_truth() -> None:
    truth = 0.6 * POWER_W / NUM_TOKENS
    num_covered = 0
    for seed in range(40):
        energy = measured(answers(0.6, 24, seed))
        assert interval(energy).half_width < 0.25 * number(energy)
        num_covered += truth in interval(energy)
    assert num_covered >= 38


def test_answers_of_a_few_ticks_have_none() -> None:
    """Some answers have 0 J: the counter did not move."""
    short = answers(0.09, 24)
    assert min(answer.energy_j or 0.0 for answer in short) == 0.0
    assert measured(short) == TOO_COARSE
    still = [replace(answer, energy_j=0.0) for answer in short]
    assert measured(still) == TOO_COARSE


@pytest.mark.parametrize("num", [1, 2])
def test_an_energy_of_few_prompts_has_no_interval(num: int) -> None:
    assert estimate(measured(answers(3.0, num))).interval is None


def alone(joules: float | None, num_tokens: int = 10, absent: str = "") -> MethodEnergy:
    return MethodEnergy("pld", 0.0, joules, num_tokens, absent=absent)


def test_the_energy_of_a_method_alone_counts_more_than_that_of_its_answers() -> None:
    run = make_run(answers(0.6, 24))
    of_answers = measure(run).cost("pld", 0.0, "gsm8k").joules_per_token
    header = structs.replace(run.header, energy=(alone(7.0),))
    metrics = measure(replace(run, header=header))
    assert metrics.cost("pld", 0.0).joules_per_token == Estimate(7.0)
    assert metrics.cost("pld", 0.0, "gsm8k").joules_per_token == of_answers != Estimate(7.0)


def test_runs_of_a_pool_have_one_energy_and_a_missing_one_is_missing() -> None:
    assert joules_per_token_alone([alone(7.0), alone(4.0, 20)]) == Estimate(150 / 30)
    still = alone(None, absent="the counter stood still")
    assert joules_per_token_alone([alone(7.0), still]) == Missing("the counter stood still")
    assert joules_per_token_alone([alone(7.0, 0)]) == Missing("not measured")
