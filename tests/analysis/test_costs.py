"""Step costs, and the identity `speedup = MAT / step cost`."""

import random
from dataclasses import astuple, replace

import pytest

from specbench.analysis.cells import CellKey
from specbench.analysis.costs import NO_COST, Conditions, Cost, measure_costs
from specbench.analysis.metrics import POOLED, measure, rows_by_cell
from specbench.analysis.records import make_table
from specbench.analysis.roofline import Roofline
from specbench.analysis.stats.bootstrap import Missing
from specbench.types import Phases, Record
from tests.analysis.run_factory import failed, full_run, header, make_run, number, record

PHASES = Missing("run with --phases")


def cost(own: list[Record], baseline: list[Record], conditions: Conditions | None = None) -> Cost:
    table = make_table([*own, *baseline])
    costs = measure_costs(table, rows_by_cell(table.frame), conditions or Conditions())
    return costs.get(CellKey("pld", 0.0, POOLED), NO_COST)


def random_pair(generator: random.Random, sample: str) -> tuple[Record, Record]:
    lengths = [generator.randint(1, 5) for _ in range(generator.randint(2, 9))]
    own = record("pld", sample, accept_lengths=lengths, decode_s=generator.uniform(0.5, 2))
    other = record(
        "vanilla", sample, accept_lengths=[1] * sum(lengths), decode_s=generator.uniform(1, 3)
    )
    return own, other


@pytest.mark.parametrize("seed", range(20))
def test_the_decode_speedup_is_mat_over_the_cost_of_a_step(seed: int) -> None:
    generator = random.Random(seed)
    pairs = [random_pair(generator, str(i)) for i in range(generator.randint(1, 8))]
    own, base = ([pair[i] for pair in pairs] for i in (0, 1))
    found = cost(own, base)
    run = make_run(own + base, header(["vanilla", "pld"], ["gsm8k"]))
    expected = measure(run).pooled("pld", 0.0).decode_speedup
    assert number(found.decode_speedup) == pytest.approx(number(expected), rel=1e-12)
    assert number(found.mat) / number(found.relative) == number(found.decode_speedup)


def test_completions_that_vanilla_lacks_are_left_out() -> None:
    shared = record("pld", "a", accept_lengths=(2,), decode_s=1.0)
    alone = record("pld", "b", accept_lengths=(5,), decode_s=9.0)
    base = record("vanilla", "a", accept_lengths=(1, 1), decode_s=1.0)
    assert cost([shared, alone], [base]) == cost([shared], [base])


def test_phases_add_up_to_the_cost_of_a_step() -> None:
    split = Phases(0.1, 0.6, 0.05, 0.05)
    own = replace(record("pld", accept_lengths=(2, 2), decode_s=0.8), phases=split)
    base = record("vanilla", accept_lengths=(1, 1, 1, 1), decode_s=0.8)
    found = cost([own], [base], Conditions(no_times=PHASES))
    assert found.phases == Phases(0.05, 0.3, 0.025, 0.025)
    assert found.relative_phases is not None
    assert sum(astuple(found.relative_phases)) == pytest.approx(number(found.relative))


def test_a_run_with_phases_has_costs_and_no_speed() -> None:
    own = record("pld", accept_lengths=(2, 2))
    base = record("vanilla", accept_lengths=(1, 1, 1, 1))
    roofline = Roofline(1e9, 100, 0, {"pld": 0.0}, 0.0)
    found = cost([own], [base], Conditions(roofline, PHASES))
    assert found.decode_speedup == found.reached == PHASES
    assert number(found.limit) == 2.0
    assert number(found.relative) == 2.0


def test_without_a_baseline_a_step_has_a_time_and_no_relative_cost() -> None:
    found = cost([record("pld", accept_lengths=(2, 2), decode_s=0.5)], [])
    assert number(found.step_s) == 0.25
    assert found.relative == found.decode_speedup == Missing("no baseline")
    assert found.relative_phases is None


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ([], "not run"),
        ([failed("pld")], "all failed"),
        ([record("pld", accept_lengths=())], "no steps"),
    ],
)
def test_a_cell_without_steps_has_a_reason(own: list[Record], reason: str) -> None:
    found = cost(own, [record("vanilla")])
    assert found.mat == found.step_s == found.relative == Missing(reason)


def test_energy_is_per_token_and_memory_the_most_of_all_completions() -> None:
    one = replace(record("pld", "a", accept_lengths=(3,)), energy_j=6.0, peak_memory_bytes=50)
    two = replace(record("pld", "b", accept_lengths=(1,)), energy_j=3.0, peak_memory_bytes=70)
    unmetered = record("pld", "c", accept_lengths=(9,))
    found = cost([one, two, unmetered], [])
    assert number(found.joules_per_token) == 9.0 / (4 + 2)
    assert found.peak_memory_bytes == 70
    assert cost([unmetered], []).joules_per_token == Missing("not measured")
    assert cost([unmetered], []).peak_memory_bytes is None


def test_every_cell_has_its_costs_and_one_without_records_says_so() -> None:
    metrics = measure(full_run(("vanilla", "pld"), ("gsm8k", "alpaca")))
    assert number(metrics.cost("vanilla", 0.0).relative) == 1.0
    assert number(metrics.cost("pld", 0.0, "gsm8k").relative) > 0
    assert {key.task for key in metrics.costs} == {"gsm8k", "alpaca", POOLED}
    assert metrics.cost("eagle", 0.0).mat == Missing("not run")
