"""Runs that pass and fail the gate."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gate_errors import METHODS, Simulator, is_blamed
from specbench.analysis.cells import CellKey
from specbench.analysis.stats.bootstrap import Estimate
from specbench.errors import UserError
from specbench.judge.checks import Check, CheckedRun
from specbench.judge.comparison import MEAN
from specbench.judge.gate import check
from specbench.judge.limits import Limits, parse_limits
from specbench.log.run import Run
from specbench.types import Record
from tests.analysis.run_factory import TASKS, full_run, make_run
from tests.judge.changing import at_loads, broken, slower, with_header, with_records

RUN = full_run()
EVERYBODY = ("vanilla", "pld", "sps", "lookahead")


def cell(check: Check) -> CellKey:
    assert check.cell
    return check.cell


def found(gate: CheckedRun, name: str | None = None) -> set[tuple[str, str]]:
    """Method and task of each failed check."""
    return {(cell(f).method, cell(f).task) for f in gate.failures if name in (None, f.name)}


def of_cells(gate: CheckedRun) -> list[Check]:
    return [check for check in gate.checks if check.cell]


def methods(gate: CheckedRun) -> set[str]:
    return {method for method, _ in found(gate)}


def changed(of: Callable[[Record], bool], change: Callable[[Record], Record | None]) -> Run:
    return with_records(RUN, lambda record: change(record) if of(record) else record)


def test_a_run_passes_against_itself_in_every_cell() -> None:
    gate = check(RUN, RUN)
    assert gate.is_passed
    cells = {cell(f) for f in of_cells(gate) if cell(f).task != MEAN}
    assert len(cells) == 4 * 6
    assert {f.name for f in of_cells(gate)} == {"samples", "output", "MAT", "speed"}
    assert {f.status for f in gate.checks} == {"passed"}


def test_a_slower_method_is_blamed_and_no_other() -> None:
    gate = check(slower(RUN, {"pld": 1.1}), RUN)
    assert found(gate) == {("pld", task) for task in (*TASKS, MEAN)}
    assert {f.name for f in gate.failures} == {"speed"}
    failure = gate.failures[0]
    assert isinstance(failure.value, Estimate) and failure.limit == 0.05
    assert failure.value.value == pytest.approx(0.1)
    assert "slower by 10 %" in failure.text
    assert "5 % is allowed" in failure.text


def test_a_method_that_is_slower_at_one_load_is_blamed_there_alone() -> None:
    before = at_loads(RUN, {1: {}, 8: {}})
    gate = check(at_loads(RUN, {1: {}, 8: {"pld": 1.2}}), before)
    assert methods(gate) == {"pld"}
    assert {cell(one).load.concurrency for one in gate.failures} == {8}
    assert gate.failures[0].method == "PLD, 8 requests at once"
    assert check(before, before).is_passed


def test_a_load_of_the_baseline_that_is_missing_fails() -> None:
    gate = check(at_loads(RUN, {1: {}}), at_loads(RUN, {1: {}, 8: {}}))
    assert {(one.name, cell(one).load.concurrency) for one in gate.failures} == {("samples", 8)}
    assert methods(gate) == {*EVERYBODY}


def test_a_slowdown_within_the_limit_passes() -> None:
    assert check(slower(RUN, {"pld": 1.04}), RUN).is_passed
    assert not check(slower(RUN, {"pld": 1.04}), RUN, Limits(max_slowdown=0.03)).is_passed


def test_a_slowdown_of_everything_fails_vanilla_alone() -> None:
    """A slower vanilla means that the engine or the machine is slower, not a method."""
    gate = check(slower(RUN, dict.fromkeys(EVERYBODY, 1.2)), RUN)
    assert methods(gate) == {"vanilla"}


def test_a_faster_vanilla_fails_no_method() -> None:
    assert check(slower(RUN, {"vanilla": 0.5}), RUN).is_passed


def test_without_vanilla_the_seconds_decide() -> None:
    run = full_run(methods=("pld", "sps"))
    assert methods(check(slower(run, {"pld": 1.2}), run)) == {"pld"}


@pytest.mark.parametrize(
    ("rule", "is_same_machine", "is_checked"),
    [
        ("matching", True, True),
        ("matching", False, False),
        ("always", False, True),
        ("never", True, False),
    ],
)
def test_speed_is_checked_on_the_baselines_machine_unless_told_otherwise(
    rule: Any, is_same_machine: bool, is_checked: bool
) -> None:
    run = slower(RUN, {"pld": 1.5})
    if not is_same_machine:
        run = with_header(run, environment__cpu__model="Another CPU")
    gate = check(run, RUN, Limits(speed=rule))
    assert gate.is_passed is not is_checked
    assert any("not checked" in note.text for note in gate.notes) is not is_checked
    assert any(f.name == "speed" for f in gate.checks) is is_checked


def fewer_accepted(record: Record) -> Record:
    """The same tokens in more steps: every long step is split in two."""
    lengths = [part for n in record.accept_lengths for part in ((n - 1, 1) if n > 1 else (n,))]
    return replace(record, accept_lengths=tuple(lengths))


def test_a_lower_mat_is_stopped_on_any_machine() -> None:
    run = changed(lambda r: r.key.method == "sps", fewer_accepted)
    gate = check(with_header(run, environment__cpu__model="Another CPU"), RUN)
    assert found(gate, "MAT") == found(gate) == {("sps", task) for task in (*TASKS, MEAN)}
    failure = gate.failures[0]
    assert isinstance(failure.before, Estimate)
    assert isinstance(failure.now, Estimate)
    assert failure.now.value < failure.before.value


def test_a_mat_within_its_limit_passes() -> None:
    is_one = {("sps", "gsm8k/3")}
    run = changed(lambda r: (r.key.method, r.key.sample_id) in is_one, fewer_accepted)
    assert check(run, RUN).is_passed


def test_new_failures_are_stopped_and_old_ones_are_not() -> None:
    def is_hit(record: Record) -> bool:
        return record.key.method == "pld" and record.key.sample_id in ("gsm8k/1", "gsm8k/2")

    failing = changed(is_hit, lambda r: broken(r, "out of memory\nTraceback"))
    gate = check(failing, RUN)
    assert found(gate) == {("pld", "gsm8k")}
    (failure,) = gate.failures
    assert failure.text == "2 of 8 completions failed that had not: out of memory"
    assert check(failing, failing).is_passed
    assert check(RUN, failing).is_passed


def test_a_run_in_which_everything_failed_is_stopped() -> None:
    gate = check(with_records(RUN, broken), RUN)
    assert found(gate) == {(method, task) for method in EVERYBODY for task in TASKS}


def test_a_cell_that_is_gone_is_stopped() -> None:
    gone = changed(lambda r: (r.key.method, r.key.task) == ("sps", "alpaca"), lambda r: None)
    assert found(check(gone, RUN)) == {("sps", "alpaca")}
    no_sps = changed(lambda r: r.key.method == "sps", lambda r: None)
    assert found(check(no_sps, RUN), "samples") == {("sps", task) for task in TASKS}


def test_a_missing_completion_fails() -> None:
    gone = changed(lambda r: (r.key.method, r.key.sample_id) == ("sps", "gsm8k/1"), lambda r: None)
    (failure,) = check(gone, RUN).failures
    assert failure.text == "1 of 8 completions are missing"


def test_a_run_over_fewer_prompts_is_judged_on_those() -> None:
    part = with_records(RUN, lambda r: r if r.key.sample_id[-1] in "0123" else None)
    assert check(part, RUN).is_passed


def test_cells_of_the_new_run_alone_are_not_checked() -> None:
    more = full_run(methods=(*EVERYBODY, "medusa"))
    old = make_run([r for r in more.records if r.key.method != "medusa"], RUN.header)
    gate = check(more, old)
    assert gate.is_passed
    assert "medusa" not in {cell(f).method for f in of_cells(gate)}
    assert [note.text for note in gate.notes if note.is_warning] == [
        f"only in {more.header.id}: Medusa"
    ]


def test_an_unfinished_run_is_stopped() -> None:
    gate = check(with_header(RUN, status="interrupted"), RUN)
    assert [f.text for f in gate.failures] == ["The run is not complete (status interrupted)."]
    assert check(RUN, with_header(RUN, status="interrupted")).is_passed


def other_answer(record: Record) -> Record:
    return replace(record, token_ids=(*record.token_ids[:-1], 7777))


def answering_otherwise(method: str, samples: Sequence[str]) -> Run:
    return changed(lambda r: r.key.method == method and r.key.sample_id in samples, other_answer)


def test_in_float32_one_answer_that_is_vanillas_no_longer_is_stopped() -> None:
    run = answering_otherwise("pld", ["gsm8k/3"])
    gate = check(run, RUN)
    assert found(gate) == {("pld", "gsm8k")}
    assert gate.failures[0].text == (
        "1 of 8 greedy answers no longer match vanilla's, first gsm8k/3, turn 1"
    )
    assert check(run, run).is_passed
    assert check(RUN, run).is_passed
    assert check(run, RUN, Limits(max_mismatch=0.05)).is_passed
    assert not check(run, RUN, Limits(max_mismatch=0.01)).is_passed


def half(run: Run) -> Run:
    return with_header(run, model__dtype="float16")


def test_in_half_precision_only_more_than_chance_is_stopped() -> None:
    few = [f"gsm8k/{i}" for i in range(4)]
    many = [f"{task}/{i}" for i in range(4) for task in ("gsm8k", "alpaca")]
    assert check(half(answering_otherwise("pld", few)), half(RUN)).is_passed
    gate = check(half(answering_otherwise("pld", many)), half(RUN))
    assert found(gate, "output") == {("pld", "gsm8k"), ("pld", "alpaca")}


def test_in_half_precision_as_many_answers_mended_as_broken_are_chance() -> None:
    one, other = (
        half(answering_otherwise("pld", [f"{task}/{i}" for i in range(8)]))
        for task in ("gsm8k", "alpaca")
    )
    assert check(one, other).is_passed


@pytest.mark.parametrize(("shift", "is_passed"), [(-3, False), (0, True), (3, True)])
def test_in_half_precision_answers_that_leave_vanillas_earlier_are_stopped(
    shift: int, is_passed: bool
) -> None:
    """All answers leave vanilla's at a near-tie in both runs, so that none stopped being equal."""

    def leaving(shift: int) -> Run:
        def change(record: Record) -> Record:
            at = 10 + int(record.key.sample_id.split("/")[1]) + shift
            ids = (*record.token_ids[:at], *(7777 for _ in record.token_ids[at:]))
            return replace(record, token_ids=ids)

        return half(changed(lambda record: record.key.method == "pld", change))

    gate = check(leaving(shift), leaving(0))
    assert gate.is_passed == is_passed
    if not is_passed:
        assert "leave vanilla's earlier than in the baseline" in gate.failures[0].text


def test_the_output_of_a_lossy_method_is_not_checked() -> None:
    lossy = {"methods__pld__is_lossless": False}
    run = with_header(answering_otherwise("pld", ["gsm8k/3"]), **lossy)
    assert check(run, with_header(RUN, **lossy)).is_passed


def test_sampled_answers_are_not_compared_with_vanillas() -> None:
    run = full_run(temperatures=(1.0,))
    assert check(with_records(run, other_answer), run).is_passed


def test_vanilla_may_change_at_a_near_tie_but_not_everywhere() -> None:
    def all_otherwise(samples: Sequence[str]) -> Run:
        return changed(lambda r: r.key.sample_id in samples, other_answer)

    assert check(all_otherwise(["gsm8k/3", "alpaca/0"]), RUN).is_passed
    gate = check(all_otherwise([f"gsm8k/{i}" for i in range(8)]), RUN)
    assert found(gate) == {("vanilla", "gsm8k")}
    assert "8 of 8 greedy answers differ from the baseline's" in gate.failures[0].text
    assert check(half(all_otherwise([f"gsm8k/{i}" for i in range(8)])), half(RUN)).is_passed


def test_checks_with_too_few_samples_are_skipped() -> None:
    run = full_run(tasks=("gsm8k",), num_samples=1)
    gate = check(slower(run, {"pld": 3.0}), run)
    assert gate.is_passed
    skipped = [f for f in gate.checks if f.status == "skipped"]
    assert {f.name for f in skipped} == {"MAT", "speed"}
    assert all(f.text.startswith("too few samples to judge") for f in skipped)


def test_two_samples_a_task_are_enough_over_six_tasks() -> None:
    run = full_run(num_samples=2)
    assert ("pld", MEAN) in found(check(slower(run, {"pld": 1.5}), run))


def test_runs_with_other_work_are_refused() -> None:
    with pytest.raises(UserError, match="did not do the same work"):
        check(with_header(RUN, spec__values__max_new_tokens=64), RUN)


def test_checks_stand_in_the_order_of_the_table() -> None:
    order = list(dict.fromkeys(cell(f).method for f in of_cells(check(RUN, RUN))))
    assert order == list(EVERYBODY)


def test_limits_are_shares_with_or_without_a_percent_sign() -> None:
    assert parse_limits("5%", "0.02", None, "never") == Limits(0.05, 0.02, None, "never")
    assert parse_limits("0%", "2.5 %", "1%", "always").max_mat_drop == pytest.approx(0.025)
    for wrong in ("5", "five", "-1%", "nan", ""):
        with pytest.raises(UserError, match="is not a share"):
            parse_limits(wrong, "2%", None, "matching")
    with pytest.raises(UserError, match="Did you mean 'never'"):
        parse_limits("5%", "2%", None, "nevr")


def alarms(simulator: Simulator, limits: Limits, num_pairs: int) -> int:
    runs = [(simulator.run(2 * i), simulator.run(2 * i + 1)) for i in range(num_pairs)]
    return sum(not check(run, other, limits).is_passed for run, other in runs)


@pytest.mark.slow
def test_equal_runs_pass_even_with_limits_of_zero() -> None:
    """A tenth of the trials of benchmarks/gate_errors.py: nine methods on six tasks."""
    simulator = Simulator(12, drift=0.0)
    assert alarms(simulator, Limits(0.0, 0.0, 0.15), num_pairs=20) == 0


@pytest.mark.slow
def test_a_method_ten_percent_slower_is_caught_and_no_other_blamed() -> None:
    simulator = Simulator(80, methods=("vanilla", "pld", "eagle2"))
    for i in range(5):
        run: Run = simulator.run(2 * i, {"eagle2": 0.10})
        gate = check(run, simulator.run(2 * i + 1), Limits(max_mismatch=0.1))
        assert [method for method in METHODS if is_blamed(gate, method)] == ["eagle2"]
