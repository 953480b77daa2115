"""Speed against several baselines: equal runs pass, slow methods fail, noise cannot tell."""

from collections.abc import Mapping

import pytest

from benchmarks.gate_errors import METHODS, Simulator
from specbench.errors import UserError
from specbench.judge.checks import CheckedRun
from specbench.judge.comparison import MEAN
from specbench.judge.gate import check
from specbench.judge.limits import Limits
from specbench.log.run import Run
from tests.judge.changing import at_loads

LIMITS = Limits(max_mismatch=0.1)


def gate(
    simulator: Simulator,
    seed: int,
    slowdowns: Mapping[str, float] | None = None,
    num_baselines: int = 5,
) -> CheckedRun:
    baselines: list[Run] = [simulator.run(1000 * seed + i) for i in range(1, 1 + num_baselines)]
    return check(simulator.run(1000 * seed, slowdowns), baselines[0], LIMITS, more=baselines[1:])


def slow(found: CheckedRun) -> set[str]:
    return {one.cell.method for one in found.failures if one.cell and one.name == "speed"}


@pytest.mark.slow
def test_a_slow_method_is_caught_through_bursts_and_the_drift_of_whole_runs() -> None:
    simulator = Simulator(8, drift=0.06, bursts=0.05)
    for seed, method in enumerate(["pld", "eagle2", "eagle3", "medusa"]):
        assert slow(gate(simulator, seed, {method: 0.2})) == {method}


@pytest.mark.slow
def test_equal_runs_pass_however_far_whole_runs_differ() -> None:
    simulator = Simulator(8, drift=0.06, bursts=0.05)
    assert [slow(gate(simulator, seed)) for seed in range(10, 16)] == [set()] * 6


def test_all_methods_that_are_slower_alike_are_one_failure() -> None:
    found = gate(Simulator(8, drift=0.005), 3, dict.fromkeys(METHODS, 0.3))
    (failure,) = [one for one in found.failures if one.name == "speed"]
    assert failure.cell
    assert (failure.cell.method, failure.cell.task) == ("vanilla", MEAN)
    assert "in all methods together" in failure.text


def test_where_runs_differ_by_much_the_gate_cannot_tell() -> None:
    found = gate(Simulator(8, drift=0.15), 4)
    (whole,) = [one for one in found.checks if one.text.startswith("cannot tell")]
    assert whole.status == "skipped"
    assert any("cannot tell" in note.text and note.is_warning for note in found.notes)
    assert found.is_passed and found.summary.startswith("Passed")


def test_two_baselines_are_refused() -> None:
    with pytest.raises(UserError, match="2 baselines do not show"):
        gate(Simulator(8), 5, num_baselines=2)


def test_one_baseline_says_what_it_does_not_know() -> None:
    simulator = Simulator(8)
    found = check(simulator.run(1), simulator.run(2), LIMITS)
    assert any("one baseline does not show" in note.text for note in found.notes)


def test_each_load_has_its_own_speed_and_its_own_spread() -> None:
    simulator = Simulator(8)
    slow_at_8 = {1: {}, 8: {"pld": 1.3}}
    first, *more = [at_loads(simulator.run(i), {1: {}, 8: {}}) for i in range(1, 6)]
    found = check(at_loads(simulator.run(9), slow_at_8), first, LIMITS, more=more)
    speeds = [one for one in found.checks if one.name == "speed"]
    assert len(speeds) == 2 * (len(METHODS) + 1)
    failures = [one.cell for one in speeds if one.cell and one.status == "failed"]
    assert [(cell.method, cell.load.concurrency) for cell in failures] == [("pld", 8)]


def test_a_load_that_two_baselines_have_is_refused_by_name() -> None:
    simulator = Simulator(8)
    runs = [at_loads(simulator.run(i), {1: {}, 8: {}}) for i in range(2)]
    alone = [at_loads(simulator.run(i), {1: {}}) for i in range(2, 4)]
    with pytest.raises(UserError, match="2 baselines at 8 requests at once do not show"):
        check(runs[0], runs[0], LIMITS, more=[runs[1], *alone])
