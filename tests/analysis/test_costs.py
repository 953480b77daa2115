"""Step costs, the identity `speedup = MAT / step cost`, and the limit set by memory bandwidth."""

from dataclasses import astuple, replace
from typing import Any

import pytest

from specbench.analysis.cells import CellKey
from specbench.analysis.costs import NO_COST, Cost, measure_cost
from specbench.analysis.metrics import POOLED, measure, rows_by_cell
from specbench.analysis.records import make_table
from specbench.analysis.roofline import (
    ABOVE,
    EXPERTS,
    IN_CACHE,
    UNKNOWN_DRAFT,
    Roofline,
    read_roofline,
)
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.backend import RooflineHeader
from specbench.log.machine import Threads
from specbench.types import Phases, Record
from tests.analysis.run_factory import failed, full_run, number, record

PHASES = Missing("run with --phases")


def cost(records: list[Record], baseline: list[Record], **conditions: Any) -> Cost:
    table = make_table([*records, *baseline])
    key, cells = CellKey("pld", 0.0, POOLED), rows_by_cell(table.frame)
    if key not in cells:
        return NO_COST
    return measure_cost(key, table, cells[key], Draws(Bootstrap(1), POOLED), **conditions)


def test_the_decode_speedup_is_mat_over_step_cost() -> None:
    metrics = measure(full_run(tasks=("gsm8k", "alpaca")), Bootstrap(1))
    assert metrics.costs.keys() == metrics.cells.keys()
    assert {key.task for key in metrics.costs} == {"gsm8k", "alpaca", POOLED}
    for key, cell_cost in metrics.costs.items():
        expected = number(metrics.cells[key].decode_speedup)
        assert number(cell_cost.decode_speedup) == pytest.approx(expected, rel=1e-12)
        assert number(cell_cost.mat) / number(cell_cost.relative) == number(
            cell_cost.decode_speedup
        )
    assert number(metrics.cost("vanilla", 0.0).relative) == 1.0
    assert number(metrics.cost("pld", 0.0).relative) != 1.0
    assert metrics.cost("eagle", 0.0).mat == Missing("not run")


def test_completions_that_vanilla_lacks_are_left_out() -> None:
    shared = record("pld", "a", accept_lengths=(2,), decode_s=1.0)
    alone = record("pld", "b", accept_lengths=(5,), decode_s=9.0)
    base = record("vanilla", "a", accept_lengths=(1, 1), decode_s=1.0)
    assert cost([shared, alone], [base]) == cost([shared], [base])


def test_phases_add_up_to_the_cost_of_a_step_and_leave_no_speed() -> None:
    split = Phases(0.1, 0.6, 0.05, 0.05)
    drafted = replace(record("pld", accept_lengths=(2, 2), decode_s=0.8), phases=split)
    base = record("vanilla", accept_lengths=(1, 1, 1, 1), decode_s=0.8)
    roofline = Roofline(1e9, 100, 0, {"pld": 0.0}, 0.0)
    cost_of_pld = cost([drafted], [base], roofline=roofline, no_times=PHASES)
    assert cost_of_pld.phases == Phases(0.05, 0.3, 0.025, 0.025)
    assert cost_of_pld.relative_phases is not None
    assert sum(astuple(cost_of_pld.relative_phases)) == pytest.approx(number(cost_of_pld.relative))
    assert number(cost_of_pld.relative) == number(cost_of_pld.bound) == 2.0
    assert cost_of_pld.decode_speedup == cost_of_pld.reached == PHASES


def test_without_a_baseline_a_step_has_only_a_time() -> None:
    cost_of_pld = cost([record("pld", accept_lengths=(2, 2), decode_s=0.5)], [])
    assert number(cost_of_pld.step_s) == 0.25
    assert cost_of_pld.relative == cost_of_pld.decode_speedup == Missing("no baseline")
    assert cost_of_pld.relative_phases is None


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "not run"),
        ([failed("pld")], "all failed"),
        ([record("pld", accept_lengths=())], "no steps"),
    ],
)
def test_a_cell_without_steps_has_a_reason(records: list[Record], reason: str) -> None:
    cost_of_pld = cost(records, [record("vanilla")])
    assert cost_of_pld.mat == cost_of_pld.step_s == cost_of_pld.relative == Missing(reason)


def test_energy_is_per_token_and_memory_the_most_of_all_completions() -> None:
    first = replace(record("pld", "a", accept_lengths=(3,)), energy_j=6.0, peak_memory_bytes=50)
    two = replace(record("pld", "b", accept_lengths=(1,)), energy_j=3.0, peak_memory_bytes=70)
    unmetered = record("pld", "c", accept_lengths=(9,))
    cost_of_pld = cost([first, two, unmetered], [])
    assert number(cost_of_pld.joules_per_token) == 9.0 / (4 + 2)
    assert cost_of_pld.peak_memory_bytes == 70
    assert cost([unmetered], []).joules_per_token == Missing("not measured")
    assert cost([unmetered], []).peak_memory_bytes is None


MEASURED: dict[str, Any] = {
    "bandwidth_bytes_per_s": 1000.0,
    "target_bytes": 300,
    "cache_bytes": 100,
    "kv_bytes_per_token": 6,
    "is_mixture_of_experts": False,
    "draft_bytes": {"vanilla": 0, "eagle": 100.0},
}


@pytest.mark.parametrize(
    ("changes", "limit", "share"),
    [
        # A draft that reads a third of the target costs a quarter of the limit.
        ({}, Estimate(3.0), Estimate(0.5)),
        ({"draft_bytes": {}}, UNKNOWN_DRAFT, Estimate(0.5)),
        ({"cache_bytes": 150}, IN_CACHE, IN_CACHE),
        ({"is_mixture_of_experts": True}, EXPERTS, EXPERTS),
        # A step reads the experts that a row chooses.
        (
            {"is_mixture_of_experts": True, "target_bytes": 1300, "unread_bytes": 1000},
            Estimate(3.0),
            Estimate(0.5),
        ),
    ],
)
def test_memory_bandwidth_bounds_a_method(
    changes: dict[str, Any], limit: Value, share: Value
) -> None:
    roofline = read_roofline(RooflineHeader(**{**MEASURED, **changes}), [])
    assert isinstance(roofline, Roofline)
    assert roofline.bound("eagle", Estimate(4.0)) == limit
    assert roofline.bandwidth_share(Estimate(0.6)) == share
    failure = Missing("all failed")
    assert isinstance(limit, Missing) or roofline.bound("eagle", failure) == failure


@pytest.mark.parametrize(("step_s", "no_bound"), [(0.29, ABOVE), (0.31, None)])
def test_vanilla_above_the_measured_bandwidth_leaves_no_bound(
    step_s: float, no_bound: Missing | None
) -> None:
    """A step that reads 300 bytes takes 0.3 s at the measured bandwidth."""
    records = [record("vanilla", accept_lengths=(1, 1), decode_s=2 * step_s)]
    roofline = read_roofline(RooflineHeader(**MEASURED), records)
    assert isinstance(roofline, Roofline)
    assert roofline.no_bound == no_bound
    assert roofline.bandwidth_share(Estimate(step_s)) == (
        no_bound or Estimate(300 / (step_s * 1000))
    )
    assert roofline.step_bytes("eagle") == 400.0  # is known in any case


def test_the_reading_speed_of_a_step_is_its_bytes_over_its_time() -> None:
    header = RooflineHeader(**{**MEASURED, "nominal_bytes_per_s": 4000.0})
    roofline = read_roofline(header, [])
    table = make_table([record("eagle", accept_lengths=(2, 2), decode_s=0.5)])
    key = CellKey("eagle", 0.0, POOLED)
    rows = rows_by_cell(table.frame)[key]
    cost_of_eagle = measure_cost(key, table, rows, Draws(Bootstrap(1), POOLED), roofline)
    assert cost_of_eagle.bytes_per_s == 400 / 0.25
    assert cost_of_eagle.nominal_share == 400 / 0.25 / 4000
    assert measure_cost(key, table, rows, Draws(Bootstrap(1), POOLED)).bytes_per_s == 0.0


def test_a_methods_own_threads_set_its_bandwidth() -> None:
    about = RooflineHeader(**MEASURED, bandwidth_by_threads={"1": 1000.0, "2": 1500.0})
    threads = Threads(1, "measured", "brief", methods={"eagle": 2, "vanilla": 1})
    roofline = read_roofline(about, [], threads)
    assert isinstance(roofline, Roofline)
    assert roofline.bound("eagle", Estimate(4.0)) == Estimate(3.0 * 1.5)
    assert roofline.bound("vanilla", Estimate(1.0)) == Estimate(1.0)


@pytest.mark.parametrize("changes", [{"bandwidth_bytes_per_s": 0.0}, {"target_bytes": 0}])
def test_without_a_bandwidth_there_is_no_roofline(changes: dict[str, Any]) -> None:
    for about in (None, RooflineHeader(**{**MEASURED, **changes})):
        assert read_roofline(about, []) == Missing("bandwidth not measured")


def test_keys_and_values_are_those_of_vanillas_mean_step() -> None:
    # Steps see 11, 12 and 13 tokens. Those of the other method do not count.
    records = [record("vanilla", accept_lengths=(1, 1, 1)), record("eagle", accept_lengths=(3,))]
    roofline = read_roofline(RooflineHeader(**MEASURED), records)
    assert isinstance(roofline, Roofline)
    assert roofline.kv_share == 12 * 6 / 300
