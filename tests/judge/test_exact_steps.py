"""Equal answers whose steps differ from the baseline's."""

from dataclasses import replace
from typing import Any

import pytest

from specbench.judge.allowed import Allowed
from specbench.judge.checks import Check
from specbench.judge.gate import check
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.types import Record
from tests.analysis.run_factory import full_run
from tests.judge.changing import with_header, with_records
from tests.support.paths import RECORDED

REPEATABLE = {"methods__sps__is_repeatable": True, "model__dtype": "float32"}
BASELINE = with_header(full_run(id="old"), **REPEATABLE)


def changed(samples: int, of_step: int = 1, **header: Any) -> Run:
    """A run in which SpS splits some steps of its first answers on GSM8K in two."""

    def split(record: Record) -> Record:
        number = int(record.key.sample_id.rpartition("/")[2])
        if (record.key.method, record.key.task) != ("sps", "gsm8k") or number >= samples:
            return record
        lengths: list[int] = []
        for length in record.accept_lengths:
            is_split = length > 1 and len(lengths) % of_step == 0
            lengths += (length - 1, 1) if is_split else (length,)
        return replace(record, accept_lengths=tuple(lengths))

    return with_header(with_records(with_header(BASELINE, id="new"), split), **header)


def steps(run: Run, baseline: Run = BASELINE, max_drop: float = 0.02) -> list[Check]:
    """The checks of the steps of equal answers."""
    gate = check(run, baseline, Allowed(speed="never", max_mat_drop=max_drop))
    return [gate_check for gate_check in gate.checks if gate_check.name == "steps"]


def test_two_answers_with_different_steps_fail() -> None:
    (failed,) = steps(changed(2))
    assert failed.status == "failed" and failed.cell
    assert (failed.cell.method, failed.cell.task) == ("sps", "gsm8k")
    assert failed.text.startswith("2 of 8 equal answers took different steps, ")
    assert "MAT is lower by" in failed.text and "2.0% is allowed" in failed.text
    (risen,) = steps(BASELINE, with_header(changed(2), id="other"))
    assert risen.status == "failed" and "MAT is higher by" in risen.text


@pytest.mark.parametrize(("run", "max_drop"), [(changed(1), 0.02), (changed(8), 0.9)])
def test_one_answer_or_an_allowed_change_is_only_named(run: Run, max_drop: float) -> None:
    (named,) = steps(run, max_drop=max_drop)
    assert named.status == "passed" and "took different steps" in named.text
    notes = check(run, BASELINE, Allowed(speed="never", max_mat_drop=max_drop)).notes
    assert [note.text for note in notes if note.label == "Steps"] == [
        f"SpS, {named.task}: {named.text}"
    ]


def in_passes(run: Run) -> Run:
    """The run with each answer in three passes."""
    passes = [
        replace(record, key=replace(record.key, repeat=repeat))
        for repeat in range(3)
        for record in run.records
    ]
    return replace(run, records=tuple(passes))


def test_an_answer_counts_once_over_all_passes() -> None:
    (named,) = steps(in_passes(changed(1)), in_passes(BASELINE), max_drop=0.0)
    assert named.status == "passed" and named.text.startswith("3 of 24 equal answers took")


def test_steps_of_older_runs_are_named_and_never_fail() -> None:
    older = with_header(BASELINE, methods__sps__is_repeatable=None)
    (named,) = steps(changed(5, methods__sps__is_repeatable=None), older)
    assert named.status == "passed" and "5 of 8 equal answers took different steps" in named.text
    assert "MAT is lower by" in named.text and "older run" in named.text


def test_a_different_order_of_steps_is_named() -> None:
    def reverse(record: Record) -> Record:
        if (record.key.method, record.key.sample_id) != ("sps", "gsm8k/3"):
            return record
        return replace(record, accept_lengths=record.accept_lengths[::-1])

    (named,) = steps(with_records(with_header(BASELINE, id="new"), reverse))
    assert (named.status, named.text) == ("passed", "1 of 8 equal answers took different steps")


@pytest.mark.parametrize(
    "header",
    [
        {"methods__sps__is_repeatable": False},
        {"model__dtype": "bfloat16"},
        {"environment__cpu__model": "Another CPU"},
    ],
)
def test_steps_that_round_or_draw_differently_are_not_judged_as_exact(
    header: dict[str, Any],
) -> None:
    baseline = with_header(BASELINE, **{k: v for k, v in header.items() if "dtype" in k})
    assert steps(changed(8, **header), baseline) == []


@pytest.mark.parametrize(("method", "texts"), [("sps", []), ("vanilla", ["2 of 8 equal answers"])])
def test_answers_after_different_dialogues_are_not_paired(method: str, texts: list[str]) -> None:
    """The second turns of all methods follow vanilla's answers."""

    def with_second_turn(run: Run, first: int) -> Run:
        records = []
        for record in run.records:
            records.append(record)
            if record.key.method == method:
                ids = (first, *record.token_ids[1:])
                records[-1] = replace(record, token_ids=ids)
            records.append(replace(record, key=replace(record.key, turn=1)))
        return replace(run, records=tuple(records))

    (equal,) = steps(with_second_turn(changed(2), 5), with_second_turn(BASELINE, 5))
    assert equal.text.startswith("4 of 16 equal answers")
    others = steps(with_second_turn(changed(2), 5), with_second_turn(BASELINE, 6))
    assert [steps_check.text.partition(" took")[0] for steps_check in others] == texts


@pytest.mark.parametrize("name", ["amd-epyc-2-cores", "smollm2-135m-cpu"])
def test_recorded_passes_are_equal(name: str) -> None:
    """No two passes differ, if the header says which methods repeat their drafts."""
    run = read_run(RECORDED / name)
    methods = run.header.methods
    header: dict[str, Any] = {
        f"methods__{label}__is_repeatable": label != "lookahead" for label in methods
    }

    def only(number: int) -> Run:
        """One pass, as a separate run."""
        records = tuple(
            replace(record, key=replace(record.key, repeat=0))
            for record in run.records
            if record.key.repeat == number
        )
        values = header | {"id": f"pass-{number}", "spec__values__repeats": 1}
        return with_header(replace(run, records=records), **values)

    assert steps(only(1), only(0)) == []
