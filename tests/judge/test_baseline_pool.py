"""Speed against several baselines: equal runs pass, slow methods fail, noisy ones are skipped."""

from collections.abc import Mapping
from unittest.mock import patch

import pytest

from benchmarks.gate_errors import METHODS, Simulator
from specbench.analysis.stats.confidence import quantile
from specbench.analysis.stats.significance import GATE_ALPHA
from specbench.errors.kinds import UserError
from specbench.judge import baseline_pool
from specbench.judge.allowed import Allowed
from specbench.judge.checks import Check, CheckedRun
from specbench.judge.comparison import MEAN
from specbench.judge.gate import check
from specbench.types import Record
from tests.judge.changing import at_loads, with_records
from tests.judge.checked import cell

ALLOWED = Allowed(max_mismatch=0.1)


def gate(
    simulator: Simulator,
    seed: int,
    slowdowns: Mapping[str, float] | None = None,
    allowed: Allowed = ALLOWED,
) -> CheckedRun:
    run_seed = 1000 * seed
    first, *more = [simulator.run(run_seed + number) for number in range(1, 6)]
    run = simulator.run(run_seed, slowdowns)
    return check(run, first, allowed, more=more)


def speed_checks(checked: CheckedRun) -> list[Check]:
    return [outcome for outcome in checked.checks if outcome.name == "speed"]


def failed_speeds(checked: CheckedRun) -> list[Check]:
    return [outcome for outcome in speed_checks(checked) if outcome.status == "failed"]


def slow(checked: CheckedRun) -> set[str]:
    """The methods whose speed fails."""
    return {cell(failure).method for failure in failed_speeds(checked)}


@pytest.mark.slow
def test_a_slow_method_fails_even_if_whole_runs_differ() -> None:
    simulator = Simulator(8, drift=0.06, bursts=0.05)
    for seed, method in enumerate(["pld", "eagle2", "eagle3", "medusa"]):
        checked = gate(simulator, seed, {method: 0.2})
        assert slow(checked) == {method}
    for seed in range(10, 16):
        checked = gate(simulator, seed)
        assert slow(checked) == set()


@pytest.mark.parametrize(("method", "change"), [("pld", 0.2), ("vanilla", -0.25)])
def test_a_change_of_one_of_two_methods_is_its_own(method: str, change: float) -> None:
    simulator = Simulator(8, methods=("vanilla", "pld"), drift=0.003)
    assert slow(gate(simulator, 1, {method: change})) == ({method} if change > 0 else set())


def test_methods_that_are_equally_slower_are_one_failure() -> None:
    slowdowns = dict.fromkeys(METHODS, 0.3)
    checked = gate(Simulator(8, drift=0.005), 3, slowdowns)
    (failure,) = failed_speeds(checked)
    failed_cell = cell(failure)
    assert failed_cell.method == "vanilla"
    assert failed_cell.task == MEAN
    assert "in all methods together" in failure.text


def test_the_gate_skips_speeds_of_noisy_runs() -> None:
    checked = gate(Simulator(8, drift=0.15), 4)
    (whole,) = [outcome for outcome in checked.checks if outcome.text.startswith("cannot tell")]
    assert whole.status == "skipped"
    assert any("cannot tell" in note.text for note in checked.notes if note.is_warning)
    assert checked.is_passed
    assert checked.summary.startswith("Passed")


def test_equal_runs_pass_if_a_large_slowdown_is_allowed() -> None:
    """A test has to find twice the allowed slowdown if that is more than 20 %."""
    allowed = Allowed(max_slowdown=0.25, max_mismatch=0.1)
    checked = gate(Simulator(8), 4, allowed=allowed)
    statuses = {outcome.status for outcome in speed_checks(checked)}
    assert statuses == {"passed"}


def test_the_only_method_counts_as_one_check() -> None:
    with patch.object(baseline_pool, "quantile", wraps=quantile) as quantiles:
        gate(Simulator(8, methods=("pld",)), 3)
    quantiles.assert_called_once_with(4, 1 - GATE_ALPHA)


def test_a_method_that_a_baseline_lacks_is_not_judged() -> None:
    simulator = Simulator(8)
    run, first, second, third = [simulator.run(seed) for seed in range(4)]

    def drop_pld(record: Record) -> Record | None:
        return None if record.key.method == "pld" else record

    without_pld = with_records(third, drop_pld)
    checked = check(run, first, ALLOWED, more=[second, without_pld])
    speeds = speed_checks(checked)
    (speed_of_pld,) = [speed for speed in speeds if cell(speed).method == "pld"]
    assert speed_of_pld.status == "skipped"
    assert checked.exit_code == 3
    assert checked.failures == ()
    assert checked.summary.startswith("Speed of PLD could not be judged")


def test_the_only_method_is_judged_under_its_own_name() -> None:
    simulator = Simulator(8, methods=("pld",))
    checked = gate(simulator, 3, {"pld": 0.3})
    assert slow(checked) == {"pld"}


def test_each_load_has_its_own_speed_and_its_own_spread() -> None:
    simulator = Simulator(8)
    equal: Mapping[int, Mapping[str, float]] = {1: {}, 8: {}}
    slow_at_8: Mapping[int, Mapping[str, float]] = {1: {}, 8: {"pld": 1.3}}
    first, *more = [at_loads(simulator.run(seed), equal) for seed in range(1, 6)]
    slow_run = at_loads(simulator.run(9), slow_at_8)
    checked = check(slow_run, first, ALLOWED, more=more)
    assert len(speed_checks(checked)) == 2 * (len(METHODS) + 1)
    (failure,) = failed_speeds(checked)
    failed_cell = cell(failure)
    assert failed_cell.method == "pld"
    assert failed_cell.load.concurrency == 8
    alone = [at_loads(simulator.run(seed), {1: {}}) for seed in range(2, 4)]
    with pytest.raises(UserError, match="2 baselines at 8 requests at once do not show"):
        check(first, first, ALLOWED, more=[more[0], *alone])
