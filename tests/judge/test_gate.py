"""Runs that pass and fail the gate.

Speed against several baselines: equal runs pass, slow methods fail, noise cannot tell.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.gate_errors import METHODS, Simulator, is_blamed
from specbench.analysis.cells import CellKey
from specbench.analysis.stats.estimates import Estimate
from specbench.errors.kinds import UserError
from specbench.judge.allowed import Allowed
from specbench.judge.checks import Check, CheckedRun
from specbench.judge.comparison import MEAN
from specbench.judge.gate import check
from specbench.log.options import options
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.report.texts import Note
from specbench.types import Record
from tests.analysis.run_factory import TASKS, full_run, make_run
from tests.before_after import make
from tests.judge.changing import at_loads, broken, several, slower, with_header, with_records
from tests.support.audits import failed_audit, passed_audit, stored_audit

RUN = full_run(id="old")
EVERYBODY = ("vanilla", "pld", "sps", "lookahead")
EVERYWHERE = (*TASKS, MEAN)
SAMPLED = full_run(temperatures=(0.0, 1.0))


def cell(check: Check) -> CellKey:
    assert check.cell
    return check.cell


def failed_cells(gate: CheckedRun, name: str | None = None) -> set[tuple[str, str]]:
    """Method and task of each failed check."""
    return {(cell(f).method, cell(f).task) for f in gate.failures if name in (None, f.name)}


def of_cells(gate: CheckedRun) -> list[Check]:
    return [check for check in gate.checks if check.cell]


def notes(gate: CheckedRun) -> str:
    return " ".join(note.text for note in gate.notes)


def changed(
    of: Callable[[Record], bool], change: Callable[[Record], Record | None], run: Run = RUN
) -> Run:
    return with_records(run, lambda record: change(record) if of(record) else record)


def fewer_accepted(record: Record) -> Record:
    """The same tokens in more steps: every long step is split in two."""
    lengths = [part for n in record.accept_lengths for part in ((n - 1, 1) if n > 1 else (n,))]
    return replace(record, accept_lengths=tuple(lengths))


def more_accepted(record: Record) -> Record:
    """The same tokens in fewer steps: every second step joins the one before."""
    lengths = record.accept_lengths
    joined = [sum(lengths[i : i + 2]) for i in range(0, len(lengths), 2)]
    return replace(record, accept_lengths=tuple(joined))


def other_answer(record: Record) -> Record:
    return replace(record, token_ids=(*record.token_ids[:-1], 7777))


def of(method: str, samples: Sequence[str] = ()) -> Callable[[Record], bool]:
    """The records of a method, or those of some of its samples."""
    return lambda r: r.key.method == method and (not samples or r.key.sample_id in samples)


def half(run: Run) -> Run:
    return with_header(run, model__dtype="float16")


def lossy(run: Run) -> Run:
    return with_header(run, methods__pld__is_lossless=False)


def elsewhere(run: Run) -> Run:
    return with_header(run, environment__cpu__model="Another CPU")


FEW = [f"gsm8k/{i}" for i in range(4)]
MANY = [f"{task}/{i}" for i in range(5) for task in ("gsm8k", "alpaca")]
ALL_OF_GSM8K = changed(lambda r: r.key.task == "gsm8k", other_answer)
OTHERWISE = changed(of("pld", ["gsm8k/3"]), other_answer)
FAILING = changed(of("pld", FEW[:2]), lambda r: broken(r, "out of memory\nTraceback"))
WITHOUT_VANILLA = full_run(methods=("pld", "sps"))
WITHOUT_OTHERS = full_run(methods=("vanilla", "pld"))
PASSES = make_run(several(RUN, 3).records, several(RUN, 3).header)


def everywhere(*methods: str, name: str = "speed") -> Mapping[str, Collection[tuple[str, str]]]:
    return {name: {(method, task) for method in methods for task in EVERYWHERE}}


class Case(NamedTuple):
    """Each run with the cells that fail against the baseline, by kind of check."""

    run: Run
    blamed: Mapping[str, Collection[tuple[str, str]]] = {}
    baseline: Run = RUN
    allowed: Allowed = Allowed()


PLD_ON_GSM8K = {"output": {("pld", "gsm8k")}}
PLD_ON_TWO = {"output": {("pld", "gsm8k"), ("pld", "alpaca")}}
CASES = {
    "nothing changed": Case(RUN),
    "a slower method": Case(slower(RUN, {"pld": 1.1}), everywhere("pld")),
    "slower within the limit": Case(slower(RUN, {"pld": 1.04})),
    "slower beyond the limit given": Case(
        slower(RUN, {"pld": 1.04}), everywhere("pld"), allowed=Allowed(max_slowdown=0.03)
    ),
    "everything slower blames vanilla": Case(
        slower(RUN, dict.fromkeys(EVERYBODY, 1.2)), everywhere("vanilla")
    ),
    "a faster vanilla blames nobody": Case(slower(RUN, {"vanilla": 0.5})),
    "without vanilla seconds decide": Case(
        slower(WITHOUT_VANILLA, {"pld": 1.2}), everywhere("pld"), WITHOUT_VANILLA
    ),
    "fewer accepted, on any machine": Case(
        slower(elsewhere(changed(of("sps"), fewer_accepted)), {"sps": 2.0}),
        everywhere("sps", name="MAT"),
    ),
    "fewer accepted in one answer": Case(changed(of("sps", ["gsm8k/3"]), fewer_accepted)),
    "more accepted": Case(changed(of("sps"), more_accepted), everywhere("sps", name="MAT")),
    "completions that fail now": Case(FAILING, {"samples": {("pld", "gsm8k")}}),
    "completions that fail in both": Case(FAILING, baseline=FAILING),
    "completions that failed before": Case(RUN, baseline=FAILING),
    "everything fails": Case(with_records(RUN, broken), {"samples": {*product(EVERYBODY, TASKS)}}),
    "a cell is gone": Case(
        changed(lambda r: (r.key.method, r.key.task) == ("sps", "alpaca"), lambda r: None),
        {"samples": {("sps", "alpaca")}},
    ),
    "a completion is gone": Case(
        changed(of("sps", ["gsm8k/1"]), lambda r: None), {"samples": {("sps", "gsm8k")}}
    ),
    "fewer prompts": Case(
        with_records(RUN, lambda r: r if r.key.sample_id[-1] in "0123" else None)
    ),
    "one other answer in float32": Case(OTHERWISE, PLD_ON_GSM8K),
    "the same other answer in both": Case(OTHERWISE, baseline=OTHERWISE),
    "an answer that became vanilla's": Case(RUN, baseline=OTHERWISE),
    "as many other answers as allowed": Case(OTHERWISE, allowed=Allowed(max_mismatch=0.05)),
    "more other answers than allowed": Case(
        OTHERWISE, PLD_ON_GSM8K, allowed=Allowed(max_mismatch=0.01)
    ),
    "few other answers in half precision": Case(
        half(changed(of("pld", FEW), other_answer)), baseline=half(RUN)
    ),
    "few other answers in each pass in half precision": Case(
        half(changed(of("pld", FEW), other_answer, PASSES)), baseline=half(PASSES)
    ),
    "as many other answers as chance gives one of several methods in half precision": Case(
        half(changed(of("pld", MANY[:8]), other_answer)), baseline=half(RUN)
    ),
    "more other answers than chance gives one method in half precision": Case(
        half(changed(of("pld", MANY[:8]), other_answer, WITHOUT_OTHERS)),
        PLD_ON_TWO,
        half(WITHOUT_OTHERS),
    ),
    "many other answers in half precision": Case(
        half(changed(of("pld", MANY), other_answer)), PLD_ON_TWO, half(RUN)
    ),
    "as many answers mended as broken in half precision": Case(
        half(changed(of("pld", [f"gsm8k/{i}" for i in range(8)]), other_answer)),
        baseline=half(changed(of("pld", [f"alpaca/{i}" for i in range(8)]), other_answer)),
    ),
    "other answers of a lossy method": Case(lossy(OTHERWISE), baseline=lossy(RUN)),
    "two answers of vanilla": Case(
        changed(lambda r: r.key.sample_id in ("gsm8k/3", "alpaca/0"), other_answer)
    ),
    "all answers of a task": Case(ALL_OF_GSM8K, {"output": {("vanilla", "gsm8k")}}),
    "all answers of a task in half precision": Case(half(ALL_OF_GSM8K), baseline=half(RUN)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gate_blames_what_is_worse_and_nothing_else(name: str) -> None:
    run, blamed, baseline, allowed = CASES[name]
    gate = check(run, baseline, allowed)
    assert {f.name for f in gate.failures} == {*blamed}
    for kind, cells in blamed.items():
        assert failed_cells(gate, kind) == cells
    assert gate.is_passed is not bool(blamed)


def test_the_checks_of_a_run_against_itself() -> None:
    gate = check(with_header(RUN, id="new"), RUN)
    assert len({cell(f) for f in of_cells(gate) if cell(f).task != MEAN}) == 4 * 6
    assert {f.name for f in of_cells(gate)} == {"samples", "output", "MAT", "speed"}
    assert {f.status for f in gate.checks} == {"passed"}
    assert list(dict.fromkeys(cell(f).method for f in of_cells(gate))) == list(EVERYBODY)
    assert gate.summary == "Passed: 49 of 49 numbers judged; new does not fall behind old."
    assert notes(gate).count("all unchanged or better") == 2
    assert "one baseline does not show" in notes(gate)
    assert {f.method for f in of_cells(gate)} == {"Vanilla", "PLD", "SpS", "Lookahead"}
    sampled = of_cells(check(SAMPLED, SAMPLED))
    assert {"PLD, T=0", "PLD, T=1"} <= {f.method for f in sampled}


def test_a_failure_tells_what_changed_by_how_much_and_what_is_allowed() -> None:
    gate = check(with_header(slower(RUN, {"pld": 1.1}), id="new"), RUN)
    failure = gate.failures[0]
    assert isinstance(failure.value, Estimate) and failure.allowed == 0.05
    assert failure.value.value == pytest.approx(0.1)
    assert "slower by 10 %" in failure.text and "5 % is allowed" in failure.text
    assert (
        gate.summary
        == "FAILED: new falls behind old. 7 failed checks: PLD. 49 of 49 numbers judged."
    )
    failure = check(changed(of("sps"), fewer_accepted), RUN).failures[0]
    assert isinstance(failure.before, Estimate) and isinstance(failure.now, Estimate)
    assert failure.now.value < failure.before.value
    failure = check(changed(of("sps"), more_accepted), RUN).failures[0]
    assert "higher by" in failure.text and "audit" in failure.text


def test_the_worst_change_that_passed_is_a_note() -> None:
    slow = notes(check(slower(RUN, {"pld": 1.02}), RUN))
    assert "the worst is PLD" in slow and "slower by 2 %" in slow


def test_loads_are_judged_each_by_itself() -> None:
    before = at_loads(RUN, {1: {}, 8: {}})
    gate = check(at_loads(RUN, {1: {}, 8: {"pld": 1.2}}), before)
    assert {
        (cell(failure).method, cell(failure).load.concurrency) for failure in gate.failures
    } == {("pld", 8)}
    assert gate.failures[0].method == "PLD, 8 requests at once"
    gate = check(at_loads(RUN, {1: {}}), before)
    assert {(failure.name, cell(failure).load.concurrency) for failure in gate.failures} == {
        ("samples", 8)
    }
    assert {cell(failure).method for failure in gate.failures} == {*EVERYBODY}


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
    gate = check(run if is_same_machine else elsewhere(run), RUN, Allowed(speed=rule))
    assert gate.is_passed is not is_checked
    assert ("; speed was not checked." in gate.summary) is not is_checked
    assert any(f.name == "speed" for f in gate.checks) is is_checked
    if rule == "matching" and not is_checked:
        assert "not checked: another machine: Example CPU 9000, threads: 2 in" in notes(gate)


def test_cells_of_the_new_run_alone_are_not_checked() -> None:
    more = full_run(methods=(*EVERYBODY, "medusa"))
    old = make_run([r for r in more.records if r.key.method != "medusa"], RUN.header)
    gate = check(more, old)
    assert gate.is_passed
    assert "medusa" not in {cell(f).method for f in of_cells(gate)}
    assert f"only in {more.header.id}: Medusa" in notes(gate)


def test_a_run_that_is_not_complete_is_stopped_and_a_baseline_that_lacks_records_is_told() -> None:
    num_records = len(RUN.records) + 10
    missing = f"10 of {num_records} records are missing"
    for reason, cut in (
        ("status interrupted", with_header(RUN, status="interrupted")),
        (missing, with_header(RUN, num_records=num_records)),
    ):
        (failure,) = check(cut, RUN).failures
        assert failure.text == f"The run is not complete ({reason})."
        checked = check(RUN, cut)
        notes = [note for note in checked.notes if note.is_warning and missing in note.text]
        assert checked.is_passed and bool(notes) is (reason == missing)


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

        return half(changed(of("pld"), change))

    gate = check(leaving(shift), leaving(0))
    assert gate.is_passed == is_passed
    if not is_passed:
        assert "leave vanilla's earlier than in the baseline" in gate.failures[0].text


def spread(run: Run, seed: int = 1, sd: float = 0.1, methods: Collection[str] = EVERYBODY) -> Run:
    """The run with times that differ from sample to sample as on a real machine."""
    draw = random.Random(seed)
    drawn = {r.key: draw.lognormvariate(0, sd) for r in run.records}
    factors = {key: factor for key, factor in drawn.items() if key.method in methods}
    return with_records(
        run, lambda r: replace(r, decode_s=(r.decode_s or 0.0) * factors.get(r.key, 1.0))
    )


@pytest.mark.parametrize("num_tasks", [2, 6])
@pytest.mark.parametrize("num_samples", [1, 2, 3, 8])
def test_a_method_five_times_slower_fails_or_could_not_be_judged(
    num_tasks: int, num_samples: int
) -> None:
    tasks = [*TASKS][:num_tasks]
    run = full_run(tasks=tasks, num_samples=num_samples)
    gate = check(spread(slower(run, {"pld": 5.0}), 2), spread(run))
    assert gate.exit_code == (1 if num_samples == 8 or num_samples * num_tasks > 12 else 3)
    if gate.exit_code == 3:
        judged = {f.name for f in gate.checks if f.status != "skipped"}
        start = "Speed" if "MAT" in judged else "Nothing was checked: 0 of"
        assert gate.summary.startswith(start) and "samples per task" in gate.summary


def test_a_number_whose_test_would_find_no_change_is_skipped_with_the_smallest_it_would() -> None:
    gate = check(spread(RUN, sd=0.8, methods={"pld"}), RUN)
    pld = [f for f in of_cells(gate) if (f.name, cell(f).method) == ("speed", "pld")]
    assert {f.status for f in pld} == {"skipped"}
    assert all("the smallest change that would fail is " in f.text for f in pld)
    assert all((f.needs or 0) > 8 for f in pld)
    assert gate.exit_code == 3
    assert gate.summary.startswith("Speed of PLD could not be judged: 42 of 49 numbers judged.")
    gate = check(spread(RUN, sd=0.8), RUN)
    assert (gate.exit_code, gate.failures) == (3, ())
    assert gate.summary.startswith("Speed could not be judged: 21 of 49 numbers judged.")


@pytest.mark.slow
def test_no_random_pair_passes_without_a_judged_number_of_each_kind(tmp_path: Path) -> None:
    make(tmp_path, count=100, seed=28)
    codes = Counter[int]()
    for folder in tmp_path.iterdir():
        gate = check(read_run(folder / "b"), read_run(folder / "a"))
        numbers = [outcome for outcome in gate.checks if outcome.name in ("MAT", "speed")]
        judged = {
            (outcome.name, outcome.method) for outcome in numbers if outcome.status != "skipped"
        }
        every = {(outcome.name, outcome.method) for outcome in numbers}
        assert not gate.is_passed or every == judged, folder.name
        assert gate.summary.startswith("Passed") is gate.is_passed
        codes[gate.exit_code] += 1
    assert {*codes} == {0, 1, 3}


def test_the_model_is_named_and_other_settings_are_lines_below_the_fix() -> None:
    model = "tiny (embedded, trained by specbench), float32"
    assert check(RUN, RUN).notes[0] == Note("Model", model)

    def chose(num_tokens: int) -> Run:
        options = {"ngram": 3, "num_tokens": num_tokens}
        settings = {"source": "auto", "paper": {"num_tokens": 10}}
        return with_header(RUN, methods__pld__options=options, methods__pld__settings=settings)

    gate = check(chose(3), chose(5))
    first_line, *lines = gate.summary.split("\n")
    assert first_line.startswith(f"Not judged, {model}: ") and "--settings old." in first_line
    assert lines == ["  pld: num_tokens 5 -> 3"] and gate.exit_code == 3
    other_model = with_header(chose(3), model__name="large", model__label="Large")
    with pytest.raises(UserError, match="of Large did not do the same work"):  # told first
        check(other_model, chose(5))


def test_runs_with_other_work_are_refused() -> None:
    with pytest.raises(UserError, match="did not do the same work"):
        check(with_header(RUN, spec__values__max_new_tokens=64), RUN)


def statuses(gate: CheckedRun) -> dict[tuple[str, float], str]:
    audits = [f for f in of_cells(gate) if f.name == "audit"]
    return {(cell(f).method, cell(f).temperature): f.status for f in audits}


@pytest.mark.parametrize("level", [1.0, 2.0])
def test_a_method_that_failed_its_audit_is_stopped(level: float) -> None:
    audit = stored_audit(failed_audit("sps", 1.0, level), passed_audit("pld", 1.0))
    gate = check(replace(SAMPLED, audit=audit), SAMPLED)
    (failure,) = gate.failures
    assert (cell(failure).method, cell(failure).task, failure.name) == ("sps", MEAN, "audit")
    assert "surprise" in failure.text and "1e-09" in failure.text
    assert ("at T=2" in failure.text) is (level == 2.0)
    assert statuses(gate)["pld", 1.0] == "passed"


def test_sampled_answers_are_judged_by_their_audit_alone_and_skipped_without_one() -> None:
    run = with_records(SAMPLED, lambda r: other_answer(r) if r.key.temperature else r)
    gate = check(run, SAMPLED)
    assert gate.is_passed
    assert statuses(gate) == {(name, 1.0): "skipped" for name in EVERYBODY if name != "vanilla"}
    assert all("specbench audit" in f.text for f in gate.checks if f.name == "audit")


def test_an_audited_bug_is_stopped_although_its_few_changed_answers_are_allowed() -> None:
    """The token of a wrong child left 20 of 21 answers as they were."""
    run = full_run(("vanilla", "sps"), ("gsm8k",), num_samples=21)
    changed = with_records(run, lambda r: other_answer(r) if of("sps", ["gsm8k/3"])(r) else r)
    bug = replace(changed, audit=stored_audit(failed_audit("sps", 0.0, 0.0)))
    assert {f.name for f in check(bug, run, Allowed(max_mismatch=0.1)).failures} == {"audit"}


def test_what_is_allowed_is_read_as_shares() -> None:
    read = {
        option.name: option.read("2.5 %") for option in options(Allowed) if option.form == "share"
    }
    assert Allowed(**read) == Allowed(0.025, 0.025, 0.025, "matching", 0.025)
    assert all(
        option.read(option.word) == option.default for option in options(Allowed) if option.word
    )


@pytest.mark.slow
def test_equal_runs_pass_with_limits_of_zero_and_a_method_ten_percent_slower_does_not() -> None:
    """A tenth of the trials of benchmarks/gate_errors.py: nine methods on six tasks."""
    simulator = Simulator(12, drift=0.0)
    for i in range(20):
        assert check(simulator.run(2 * i), simulator.run(2 * i + 1), Allowed(0, 0, 0.15)).is_passed
    simulator = Simulator(80, methods=("vanilla", "pld", "eagle2"))
    for i in range(5):
        run: Run = simulator.run(2 * i, {"eagle2": 0.10})
        gate = check(run, simulator.run(2 * i + 1), Allowed(max_mismatch=0.1))
        assert [method for method in METHODS if is_blamed(gate, method)] == ["eagle2"]


ALLOWED = Allowed(max_mismatch=0.1)


def gate(
    simulator: Simulator, seed: int, slowdowns: Mapping[str, float] | None = None
) -> CheckedRun:
    baselines: list[Run] = [simulator.run(1000 * seed + i) for i in range(1, 6)]
    return check(simulator.run(1000 * seed, slowdowns), baselines[0], ALLOWED, more=baselines[1:])


def slow(checked: CheckedRun) -> set[str]:
    return {
        failure.cell.method
        for failure in checked.failures
        if failure.cell and failure.name == "speed"
    }


@pytest.mark.slow
def test_a_slow_method_is_caught_and_equal_runs_pass_however_far_whole_runs_differ() -> None:
    simulator = Simulator(8, drift=0.06, bursts=0.05)
    for seed, method in enumerate(["pld", "eagle2", "eagle3", "medusa"]):
        assert slow(gate(simulator, seed, {method: 0.2})) == {method}
    assert [slow(gate(simulator, seed)) for seed in range(10, 16)] == [set()] * 6


def test_all_methods_that_are_slower_alike_are_one_failure() -> None:
    checked = gate(Simulator(8, drift=0.005), 3, dict.fromkeys(METHODS, 0.3))
    (failure,) = [failure for failure in checked.failures if failure.name == "speed"]
    assert failure.cell
    assert (failure.cell.method, failure.cell.task) == ("vanilla", MEAN)
    assert "in all methods together" in failure.text


def test_where_runs_differ_by_much_the_gate_cannot_tell() -> None:
    checked = gate(Simulator(8, drift=0.15), 4)
    (whole,) = [outcome for outcome in checked.checks if outcome.text.startswith("cannot tell")]
    assert whole.status == "skipped"
    assert any("cannot tell" in note.text and note.is_warning for note in checked.notes)
    assert checked.is_passed and checked.summary.startswith("Passed")


def test_a_method_that_a_baseline_lacks_is_not_judged() -> None:
    run, *baselines, last = (Simulator(8).run(i) for i in range(4))
    last = with_records(last, lambda r: None if r.key.method == "pld" else r)
    checked = check(run, baselines[0], ALLOWED, more=[*baselines[1:], last])
    speeds = [outcome for outcome in checked.checks if outcome.name == "speed"]
    skipped = [
        (cell(outcome).method, outcome.status)
        for outcome in speeds
        if cell(outcome).method == "pld"
    ]
    assert skipped == [("pld", "skipped")]
    assert (checked.exit_code, checked.failures) == (3, ())
    assert checked.summary.startswith("Speed of PLD could not be judged")


def test_the_only_method_is_judged_under_its_own_name() -> None:
    checked = gate(Simulator(8, methods=("pld",)), 3, {"pld": 0.3})
    assert slow(checked) == {"pld"}


def test_each_load_has_its_own_speed_and_its_own_spread() -> None:
    simulator = Simulator(8)
    slow_at_8 = {1: {}, 8: {"pld": 1.3}}
    first, *more = [at_loads(simulator.run(i), {1: {}, 8: {}}) for i in range(1, 6)]
    checked = check(at_loads(simulator.run(9), slow_at_8), first, ALLOWED, more=more)
    speeds = [outcome for outcome in checked.checks if outcome.name == "speed"]
    assert len(speeds) == 2 * (len(METHODS) + 1)
    failures = [outcome.cell for outcome in speeds if outcome.cell and outcome.status == "failed"]
    assert [(cell.method, cell.load.concurrency) for cell in failures] == [("pld", 8)]
    alone = [at_loads(simulator.run(i), {1: {}}) for i in range(2, 4)]
    with pytest.raises(UserError, match="2 baselines at 8 requests at once do not show"):
        check(first, first, ALLOWED, more=[more[0], *alone])
