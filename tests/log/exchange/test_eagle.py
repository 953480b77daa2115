"""EAGLE's and Medusa's answers: the published figures, failed turns, and the baseline's tokens."""

import math
from pathlib import Path

import pytest

from specbench.analysis.cells import CellKey
from specbench.analysis.metrics import measure
from specbench.errors import UserError
from specbench.log.exchange.arithmetic import why_ours_differs
from tests.analysis.run_factory import number
from tests.log.exchange.files import (
    about,
    answer,
    imported,
    needs_published,
    published,
    write_lines,
)
from tests.support.texts import assert_in

EAGLE = "eagle/llama-2-chat-70b-fp16-{}-in-temperature-0.0.jsonl"
MEDUSA = "medusa/medusa-vicuna-{}temperature-*"


@needs_published
def test_each_of_four_rules_gives_eagles_speedup(tmp_path: Path) -> None:
    files = [
        f"{label}={published(EAGLE.format(name))}"
        for label, name in (("base", "base"), ("eagle", "ea"))
    ]
    run = imported(tmp_path, *files, baseline="base")
    speedups = {
        (figure.rule, figure.counting): round(figure.value, 3)
        for figure in about(run).figures
        if figure.name == "speedup"
    }
    assert speedups == {
        ("EAGLE's formula", "idx"): 3.009,
        ("EAGLE's formula", "idx + 1"): 2.995,
        ("the ratio of totals", "idx"): 2.917,
        ("the ratio of totals", "idx + 1"): 2.907,
    }
    mats = [round(f.value, 2) for f in about(run).figures if f.name == "MAT"]
    assert mats == [3.62, 3.66, 3.74]
    rates = [round(f.value, 3) for f in about(run).figures if f.name.startswith("mean tokens/s")]
    assert rates == [7.467, 22.471]
    seen = " ".join(about(run).findings)
    assert_in(
        seen,
        "59 of 160 answers of eagle have base's text",
        "the same number of tokens in 24, 1 more in 35",
        "40 answers of base are cut at 512 tokens, but eagle's have up to 1,029",
    )
    cell = measure(run).cells[CellKey("eagle", 0.0, "unknown")]
    assert round(number(cell.our_speedup), 3) == 2.907
    assert number(cell.mat) == 55668 / 15377
    assert number(cell.match_rate) == 59 / 160
    (why,) = why_ours_differs(about(run).figures)
    assert "Averaging accounts for 1.0318" in why and "counting for 1.0033" in why


@needs_published
def test_medusas_repeats_are_passes_of_equal_work(tmp_path: Path) -> None:
    names = ("7b-v1.3-", "7b-v1.3-1-", "7b-v1.3-2-")
    run = imported(tmp_path, *(f"medusa={published(MEDUSA.format(name))}" for name in names))
    totals = []
    for pass_number in range(3):
        records = [record for record in run.records if record.key.repeat == pass_number]
        counts = [record.imported for record in records if record.imported]
        tokens = sum(record.num_tokens for record in records)
        steps = sum(count.num_steps or 0 for count in counts)
        seconds = sum(record.wall_s or 0 for record in records)
        totals.append((tokens, round(tokens / steps, 3), round(seconds, 1)))
    assert totals == [(43754, 2.565, 431.9), (43754, 2.565, 426.3), (43754, 2.565, 462.2)]
    assert run.header.spec.values.temperatures == (0.0,)


@needs_published
def test_a_failed_turn_that_repeats_counts_is_named(tmp_path: Path) -> None:
    run = imported(tmp_path, f"medusa={published(MEDUSA.format('13b-v1.3-'))}")
    (oddity,) = about(run).oddities
    assert (
        "line 74, choices[0]: question 154, turn 2: the answer is ERROR, and it repeats the"
        in oddity
    )
    assert oddity.endswith("the counts and the 13.358 s of the turn before; it counts as failed")
    (failed,) = [record for record in run.records if not record.is_ok]
    assert (failed.key.sample_id, failed.key.turn, failed.num_tokens) == ("154", 1, 0)


def test_a_baseline_without_counts_has_one_token_more_than_its_index(tmp_path: Path) -> None:
    base = write_lines(tmp_path / "b.jsonl", answer(1, idxs=[9], new_tokens=[0], wall_time=[2.0]))
    fast = write_lines(tmp_path / "f.jsonl", answer(1, turns=["c"], idxs=[2], new_tokens=[12]))
    run = imported(tmp_path, f"vanilla={base}", f"eagle={fast}")
    counts = {record.key.method: record.imported for record in run.records}
    vanilla, eagle = counts["vanilla"], counts["eagle"]
    assert vanilla and (vanilla.num_tokens, vanilla.counted_tokens, vanilla.num_steps) == (
        10,
        9,
        10,
    )
    assert eagle and (eagle.num_tokens, eagle.counted_tokens, eagle.num_steps) == (12, None, 3)
    speedups = {f.counting: f.value for f in about(run).figures if f.name == "speedup"}
    assert speedups == pytest.approx({"idx": 24 / 4.5, "idx + 1": 24 / 5})
    assert any("new_tokens is 0 in all turns" in oddity for oddity in about(run).oddities)


def test_a_tokenizer_gives_the_arithmetic_of_the_script(tmp_path: Path) -> None:
    base = write_lines(tmp_path / "b.jsonl", answer(1, idxs=[9], new_tokens=[0], wall_time=[2.0]))
    fast = write_lines(tmp_path / "f.jsonl", answer(1, turns=["c"], idxs=[2], new_tokens=[12]))
    run = imported(
        tmp_path,
        f"vanilla={base}",
        f"eagle={fast}",
        tokenizer="words",
        count_tokens=lambda text: 1 + len(text.split()),
    )
    first = next(f for f in about(run).figures if f.name == "speedup")
    assert (first.counting, first.value) == ("re-tokenised texts - 1", 24.0)
    assert about(run).given == {"tokenizer": "words"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (answer(1, wall_time=[]), r"line 1, choices\[0\]: 1 turns, but wall_time has 0"),
        (answer(1, wall_time=["1"]), r"wall_time\[0\]: expected float, got str"),
        (answer(1, new_tokens=[-1]), r"new_tokens\[0\]: expected int >= 0"),
        (answer(1, turns=[]), "0 turns, but new_tokens has 1"),
        ({**answer(1), "question_id": None}, "question_id: expected int | str, got null"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(line: object, message: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", line)
    with pytest.raises(UserError, match=message):
        imported(tmp_path, str(path))


def test_an_answer_without_tokens_is_left_out(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(1), answer(2, new_tokens=[0]))
    run = imported(tmp_path, str(path))
    assert [record.error for record in run.records] == [None, "it has no tokens"]
    assert about(run).oddities == (
        "a.jsonl, sample 2, turn 1: it has no tokens, and counts as failed",
    )


@pytest.mark.parametrize("temperature", [-1.0, math.inf, math.nan])
def test_a_temperature_below_0_or_without_a_value_is_refused(
    temperature: float, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(1))
    with pytest.raises(UserError, match="is not a temperature"):
        imported(tmp_path, str(path), temperature=temperature)
