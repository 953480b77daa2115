"""Runs that pass the gate, and runs that fail it."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.gate_errors import METHODS, Simulator, is_blamed
from specbench.errors.kinds import UserError
from specbench.judge.allowed import Allowed
from specbench.judge.checks import CheckedRun
from specbench.judge.comparison import MEAN
from specbench.judge.gate import check
from specbench.log.options import options
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.report.texts import Note
from specbench.types import Record
from tests.analysis.run_factory import TASKS, full_run, make_run, number
from tests.before_after import make
from tests.judge.changing import at_loads, broken, several, slower, with_header, with_records
from tests.judge.checked import cell, failed_cells, of_cells
from tests.support.audits import failed_audit, passed_audit, stored_audit
from tests.support.texts import assert_in

RUN = full_run(id="old")
EVERYBODY = ("vanilla", "pld", "sps", "lookahead")
EVERYWHERE = (*TASKS, MEAN)
SAMPLED = full_run(temperatures=(0.0, 1.0))
OTHER_TOKEN = 7777
"""A token that no answer has."""


def notes(gate: CheckedRun) -> str:
    return " ".join(note.text for note in gate.notes)


def changed(
    is_changed: Callable[[Record], bool],
    change: Callable[[Record], Record | None],
    run: Run = RUN,
) -> Run:
    return with_records(run, lambda record: change(record) if is_changed(record) else record)


def fewer_accepted(record: Record) -> Record:
    """The same tokens in more steps. Every long step is split in two."""
    lengths: list[int] = []
    for length in record.accept_lengths:
        lengths += [length - 1, 1] if length > 1 else [length]
    return replace(record, accept_lengths=tuple(lengths))


def more_accepted(record: Record) -> Record:
    """The same tokens in fewer steps. Every second step joins the previous one."""
    lengths = record.accept_lengths
    joined = [sum(lengths[start : start + 2]) for start in range(0, len(lengths), 2)]
    return replace(record, accept_lengths=tuple(joined))


def other_answer(record: Record) -> Record:
    other_ids = (*record.token_ids[:-1], OTHER_TOKEN)
    return replace(record, token_ids=other_ids)


def of(method: str, samples: Sequence[str] = ()) -> Callable[[Record], bool]:
    """Select the records of a method, or of some of its samples."""

    def is_among(record: Record) -> bool:
        key = record.key
        return key.method == method and (not samples or key.sample_id in samples)

    return is_among


def half(run: Run) -> Run:
    return with_header(run, model__dtype="float16")


def lossy(run: Run) -> Run:
    return with_header(run, methods__pld__is_lossless=False)


def elsewhere(run: Run) -> Run:
    return with_header(run, environment__cpu__model="Another CPU")


def samples_of(task: str, num_samples: int) -> list[str]:
    return [f"{task}/{number}" for number in range(num_samples)]


def out_of_memory(record: Record) -> Record:
    return broken(record, "out of memory\nTraceback")


def gone(record: Record) -> None:
    """Remove the record."""


FEW = samples_of("gsm8k", 4)
MANY = [f"{task}/{number}" for number in range(5) for task in ("gsm8k", "alpaca")]
ALL_OF_GSM8K = changed(lambda record: record.key.task == "gsm8k", other_answer)
OTHERWISE = changed(of("pld", ["gsm8k/3"]), other_answer)
FAILING = changed(of("pld", FEW[:2]), out_of_memory)
WITHOUT_VANILLA = full_run(methods=("pld", "sps"))
WITHOUT_OTHERS = full_run(methods=("vanilla", "pld"))
PASSES = make_run(several(RUN, 3).records, several(RUN, 3).header)
CHATS = make_run(
    [
        replace(record, key=replace(record.key, turn=turn))
        for record in RUN.records
        for turn in range(2)
    ],
    with_header(RUN, spec__values__history="own").header,
)
"""Chats of two turns. Another answer to the first changes the prompt of the second."""


def everywhere(method: str, name: str = "speed") -> Mapping[str, Collection[tuple[str, str]]]:
    """The cells that fail if a number of a method is worse on every task and in the mean."""
    return {name: {(method, task) for task in EVERYWHERE}}


class Case(NamedTuple):
    """A run, and the cells that fail against the baseline, by kind of check."""

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
        changed(lambda record: (record.key.method, record.key.task) == ("sps", "alpaca"), gone),
        {"samples": {("sps", "alpaca")}},
    ),
    "a completion is gone": Case(
        changed(of("sps", ["gsm8k/1"]), gone), {"samples": {("sps", "gsm8k")}}
    ),
    "fewer prompts": Case(
        with_records(RUN, lambda record: record if record.key.sample_id[-1] in "0123" else None)
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
    "few other chats in half precision": Case(
        half(changed(of("pld", MANY[:5]), other_answer, CHATS)), baseline=half(CHATS)
    ),
    "three chats of vanilla": Case(
        changed(lambda record: record.key.sample_id in MANY[:3], other_answer, CHATS),
        baseline=CHATS,
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
        half(changed(of("pld", samples_of("gsm8k", 8)), other_answer)),
        baseline=half(changed(of("pld", samples_of("alpaca", 8)), other_answer)),
    ),
    "other answers of a lossy method": Case(lossy(OTHERWISE), baseline=lossy(RUN)),
    "two answers of vanilla": Case(
        changed(lambda record: record.key.sample_id in ("gsm8k/3", "alpaca/0"), other_answer)
    ),
    "all answers of a task": Case(ALL_OF_GSM8K, {"output": {("vanilla", "gsm8k")}}),
    "all answers of a task in half precision": Case(half(ALL_OF_GSM8K), baseline=half(RUN)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gate_fails_exactly_the_worse_cells(name: str) -> None:
    run, blamed, baseline, allowed = CASES[name]
    gate = check(run, baseline, allowed)
    assert {failure.name for failure in gate.failures} == {*blamed}
    for kind, cells in blamed.items():
        assert failed_cells(gate, kind) == cells
    assert gate.is_passed is not bool(blamed)


def test_a_run_passes_all_checks_against_itself() -> None:
    gate = check(with_header(RUN, id="new"), RUN)
    cell_checks = of_cells(gate)
    cells = [cell(cell_check) for cell_check in cell_checks]
    assert len({checked for checked in cells if checked.task != MEAN}) == 4 * 6
    assert {cell_check.name for cell_check in cell_checks} == {"samples", "output", "MAT", "speed"}
    assert {outcome.status for outcome in gate.checks} == {"passed"}
    assert tuple(dict.fromkeys(checked.method for checked in cells)) == EVERYBODY
    assert gate.summary == "Passed: 49 of 49 numbers judged; new is not worse than old."
    assert notes(gate).count("all unchanged or better") == 2
    assert "one baseline does not show" in notes(gate)
    labels = {cell_check.method for cell_check in cell_checks}
    assert labels == {"Vanilla", "PLD", "SpS", "Lookahead"}
    sampled_labels = {cell_check.method for cell_check in of_cells(check(SAMPLED, SAMPLED))}
    assert {"PLD, T=0", "PLD, T=1"} <= sampled_labels


def test_a_failure_names_the_change_and_the_allowed_one() -> None:
    gate = check(with_header(slower(RUN, {"pld": 1.1}), id="new"), RUN)
    failure = gate.failures[0]
    assert number(failure.value) == pytest.approx(0.1)
    assert failure.allowed == 0.05
    assert_in(
        failure.text,
        "slower by 10 %",
        "5 % is allowed",
    )
    assert (
        gate.summary
        == "FAILED: new is worse than old. 7 failed checks: PLD. 49 of 49 numbers judged."
    )
    failure = check(changed(of("sps"), fewer_accepted), RUN).failures[0]
    assert number(failure.now) < number(failure.before)
    failure = check(changed(of("sps"), more_accepted), RUN).failures[0]
    assert_in(failure.text, "higher by", "audit")


def test_the_worst_change_that_passed_is_noted() -> None:
    assert_in(
        notes(check(slower(RUN, {"pld": 1.02}), RUN)),
        "The worst is PLD",
        "slower by 2 %",
    )


def test_each_load_is_judged_separately() -> None:
    before = at_loads(RUN, {1: {}, 8: {}})
    gate = check(at_loads(RUN, {1: {}, 8: {"pld": 1.2}}), before)
    failed = [cell(failure) for failure in gate.failures]
    assert {failed_cell.method for failed_cell in failed} == {"pld"}
    assert {failed_cell.load.concurrency for failed_cell in failed} == {8}
    assert gate.failures[0].method == "PLD, 8 requests at once"
    gate = check(at_loads(RUN, {1: {}}), before)
    failed = [cell(failure) for failure in gate.failures]
    assert {failure.name for failure in gate.failures} == {"samples"}
    assert {failed_cell.load.concurrency for failed_cell in failed} == {8}
    assert {failed_cell.method for failed_cell in failed} == {*EVERYBODY}


@pytest.mark.parametrize(
    ("rule", "is_same_machine", "is_checked"),
    [
        ("matching", True, True),
        ("matching", False, False),
        ("always", False, True),
        ("never", True, False),
    ],
)
def test_speed_is_checked_only_on_the_baselines_machine_by_default(
    rule: Any, is_same_machine: bool, is_checked: bool
) -> None:
    run = slower(RUN, {"pld": 1.5})
    gate = check(run if is_same_machine else elsewhere(run), RUN, Allowed(speed=rule))
    assert gate.is_passed is not is_checked
    assert ("; speed was not checked." in gate.summary) is not is_checked
    assert any(outcome.name == "speed" for outcome in gate.checks) is is_checked
    if rule == "matching" and not is_checked:
        assert "not checked: another machine: Example CPU 9000, threads: 2 in" in notes(gate)


def test_cells_that_only_the_new_run_has_are_not_checked() -> None:
    more = full_run(methods=(*EVERYBODY, "medusa"))
    old_records = [record for record in more.records if record.key.method != "medusa"]
    gate = check(more, make_run(old_records, RUN.header))
    assert gate.is_passed
    assert "medusa" not in {cell(cell_check).method for cell_check in of_cells(gate)}
    assert f"only in {more.header.id}: Medusa" in notes(gate)


def test_an_incomplete_run_fails() -> None:
    num_records = len(RUN.records) + 10
    missing = f"10 of {num_records} records are missing"
    for reason, cut in (
        ("status interrupted", with_header(RUN, status="interrupted")),
        (missing, with_header(RUN, num_records=num_records)),
    ):
        (failure,) = check(cut, RUN).failures
        assert failure.text == f"The run is not complete ({reason})."
        checked = check(RUN, cut)
        warnings = [note for note in checked.notes if note.is_warning and missing in note.text]
        assert checked.is_passed
        assert bool(warnings) is (reason == missing)


@pytest.mark.parametrize(("shift", "is_passed"), [(-3, False), (0, True), (3, True)])
def test_half_precision_answers_that_differ_earlier_fail(shift: int, is_passed: bool) -> None:
    """In both runs, all answers leave vanilla's at a near-tie, so none of them became different."""

    def leaving(shift: int) -> Run:
        def change(record: Record) -> Record:
            sample_number = int(record.key.sample_id.split("/")[1])
            near_tie = 10 + sample_number + shift
            same = record.token_ids[:near_tie]
            other = [OTHER_TOKEN] * len(record.token_ids[near_tie:])
            return replace(record, token_ids=(*same, *other))

        return half(changed(of("pld"), change))

    gate = check(leaving(shift), leaving(0))
    assert gate.is_passed == is_passed
    if not is_passed:
        assert "differ from vanilla's earlier than in the baseline" in gate.failures[0].text


def test_half_precision_answers_equal_to_vanillas_may_become_shorter() -> None:
    def shorter(record: Record) -> Record:
        return replace(record, token_ids=record.token_ids[:-3])

    assert check(half(with_records(RUN, shorter)), half(RUN)).is_passed


def spread(run: Run, seed: int = 1, sd: float = 0.1, methods: Collection[str] = EVERYBODY) -> Run:
    """The run, with times that vary between samples as on a real machine."""
    draw = random.Random(seed)
    factors = {record.key: draw.lognormvariate(0, sd) for record in run.records}

    def with_noise(record: Record) -> Record:
        if record.key.method not in methods:
            return record
        decode_s = record.decode_s or 0.0
        return replace(record, decode_s=decode_s * factors[record.key])

    return with_records(run, with_noise)


@pytest.mark.parametrize("num_tasks", [2, 6])
@pytest.mark.parametrize("num_samples", [1, 2, 3, 8])
def test_a_method_five_times_slower_fails_or_could_not_be_judged(
    num_tasks: int, num_samples: int
) -> None:
    tasks = [*TASKS][:num_tasks]
    run = full_run(tasks=tasks, num_samples=num_samples)
    gate = check(spread(slower(run, {"pld": 5.0}), 2), spread(run))
    is_judged = num_samples == 8 or num_samples * num_tasks > 12
    assert gate.exit_code == (1 if is_judged else 3)
    if not is_judged:
        judged = {outcome.name for outcome in gate.checks if outcome.status != "skipped"}
        start = "Speed" if "MAT" in judged else "Nothing was checked: 0 of"
        assert gate.summary.startswith(start)
        assert "samples per task" in gate.summary


def test_a_test_that_is_too_weak_is_skipped() -> None:
    gate = check(spread(RUN, sd=0.8, methods={"pld"}), RUN)
    speeds = [outcome for outcome in of_cells(gate) if outcome.name == "speed"]
    speeds_of_pld = [outcome for outcome in speeds if cell(outcome).method == "pld"]
    assert speeds_of_pld
    for speed in speeds_of_pld:
        assert speed.status == "skipped"
        assert "the smallest change that would fail is " in speed.text
        assert (speed.needs or 0) > 8
    assert gate.exit_code == 3
    assert gate.summary.startswith("Speed of PLD could not be judged: 42 of 49 numbers judged.")
    gate = check(spread(RUN, sd=0.8), RUN)
    assert (gate.exit_code, gate.failures) == (3, ())
    assert gate.summary.startswith("Speed could not be judged: 21 of 49 numbers judged.")


@pytest.mark.slow
def test_every_random_pair_that_passes_has_judged_numbers(tmp_path: Path) -> None:
    make(tmp_path, count=100, seed=28)
    codes = Counter[int]()
    for folder in tmp_path.iterdir():
        gate = check(read_run(folder / "b"), read_run(folder / "a"))
        numbers = [outcome for outcome in gate.checks if outcome.name in ("MAT", "speed")]
        judged = [number for number in numbers if number.status != "skipped"]
        kinds = {(number.name, number.method) for number in numbers}
        judged_kinds = {(number.name, number.method) for number in judged}
        assert not gate.is_passed or kinds == judged_kinds, folder.name
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
    assert first_line.startswith(f"Not judged, {model}: ")
    assert "--settings old." in first_line
    assert lines == ["  pld: num_tokens 5 -> 3"]
    assert gate.exit_code == 3
    other_model = with_header(chose(3), model__name="large", model__label="Large")
    with pytest.raises(
        UserError, match="of Large did not do the same work"
    ):  # this is refused first
        check(other_model, chose(5))


def test_runs_with_other_work_are_refused() -> None:
    with pytest.raises(UserError, match="did not do the same work"):
        check(with_header(RUN, spec__values__max_new_tokens=64), RUN)


def statuses(gate: CheckedRun) -> dict[tuple[str, float], str]:
    """The status of each check of an audit, by method and temperature."""
    by_cell: dict[tuple[str, float], str] = {}
    for outcome in of_cells(gate):
        if outcome.name == "audit":
            audited = cell(outcome)
            by_cell[audited.method, audited.temperature] = outcome.status
    return by_cell


@pytest.mark.parametrize("level", [1.0, 2.0])
def test_a_method_that_failed_its_audit_fails(level: float) -> None:
    audit = stored_audit(failed_audit("sps", 1.0, level), passed_audit("pld", 1.0))
    gate = check(replace(SAMPLED, audit=audit), SAMPLED)
    (failure,) = gate.failures
    assert failure.name == "audit"
    assert cell(failure).method == "sps"
    assert cell(failure).task == MEAN
    assert_in(failure.text, "surprise", "1e-09")
    assert ("at T=2" in failure.text) is (level == 2.0)
    assert statuses(gate)["pld", 1.0] == "passed"


def test_sampled_answers_are_judged_only_by_their_audit() -> None:
    run = changed(lambda record: record.key.temperature > 0, other_answer, SAMPLED)
    gate = check(run, SAMPLED)
    assert gate.is_passed
    methods = set(EVERYBODY) - {"vanilla"}
    assert statuses(gate) == {(method, 1.0): "skipped" for method in methods}
    for outcome in gate.checks:
        assert outcome.name != "audit" or "specbench audit" in outcome.text


def test_an_audited_bug_fails_even_if_few_answers_changed() -> None:
    """The bug, which takes the token of a wrong child, left 20 of 21 answers unchanged."""
    run = full_run(("vanilla", "sps"), ("gsm8k",), num_samples=21)
    with_bug = changed(of("sps", ["gsm8k/3"]), other_answer, run)
    audited = replace(with_bug, audit=stored_audit(failed_audit("sps", 0.0, 0.0)))
    gate = check(audited, run, Allowed(max_mismatch=0.1))
    assert {failure.name for failure in gate.failures} == {"audit"}


def test_allowed_changes_are_read_as_shares() -> None:
    shares = {
        option.name: option.read("2.5 %") for option in options(Allowed) if option.form == "share"
    }
    assert Allowed(**shares) == Allowed(0.025, 0.025, 0.025, "matching", 0.025)
    for option in options(Allowed):
        assert not option.word or option.read(option.word) == option.default


@pytest.mark.slow
def test_limits_of_zero_pass_equal_runs_and_fail_slower_ones() -> None:
    """These are a tenth of the trials of benchmarks/gate_errors.py: nine methods, six tasks."""
    simulator = Simulator(12, drift=0.0)
    nothing = Allowed(max_slowdown=0, max_mat_drop=0, max_mismatch=0.15)
    for pair in range(20):
        run: Run = simulator.run(2 * pair)
        baseline: Run = simulator.run(2 * pair + 1)
        assert check(run, baseline, nothing).is_passed
    simulator = Simulator(80, methods=("vanilla", "pld", "eagle2"))
    for pair in range(5):
        run = simulator.run(2 * pair, {"eagle2": 0.10})
        baseline = simulator.run(2 * pair + 1)
        gate = check(run, baseline, Allowed(max_mismatch=0.1))
        assert [method for method in METHODS if is_blamed(gate, method)] == ["eagle2"]
