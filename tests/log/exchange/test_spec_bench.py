"""Answers of Spec-Bench and REST, in files that follow the description of their format."""

from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.metrics import measure
from specbench.errors import UserError
from tests.log.exchange.files import about, imported, write_lines


def line(question: int, category: str = "writing", **lists: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "turns": ["a", "b"],
        "decoding_steps": [2, 1],
        "new_tokens": [5, 3],
        "wall_time": [0.25, 0.125],
        "accept_lengths": [2, 3, 3],
        **lists,
    }
    return {"question_id": question, "category": category, "model_id": "m", "choices": [choice]}


def test_lengths_are_split_by_turn_and_categories_are_kept(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "m.jsonl", line(81), line(161, "qa"))
    run = imported(tmp_path, f"medusa={path}", task="spec_bench", temperature=0)
    assert [record.accept_lengths for record in run.records] == [(2, 3), (3,)] * 2
    (prompts,) = run.header.prompts
    assert prompts.categories == {"writing": ("spec_bench/81",), "qa": ("spec_bench/161",)}
    figures = {(figure.name, figure.rule): figure.value for figure in about(run).figures}
    assert figures["MAT", "the mean of accept_lengths"] == 16 / 6
    assert measure(run).cell("medusa", 0.0, "spec_bench").accept_histogram == {2: 2, 3: 4}


def test_the_speedup_follows_by_its_formula(tmp_path: Path) -> None:
    slow = line(1, decoding_steps=[5, 3], accept_lengths=[1] * 8, wall_time=[1.0, 1.0])
    of_vanilla = write_lines(tmp_path / "v.jsonl", slow)
    of_medusa = write_lines(tmp_path / "m.jsonl", line(1))
    run = imported(tmp_path, f"vanilla={of_vanilla}", f"medusa={of_medusa}")
    speedups = [figure for figure in about(run).figures if figure.name == "speedup"]
    by_formula, by_totals = speedups
    assert by_formula.counting == "new_tokens"
    tokens_per_s = 8 / 0.375
    vanilla_tokens_per_s = 8 / 2
    assert by_formula.value == tokens_per_s / vanilla_tokens_per_s
    assert by_totals.value == by_formula.value


def test_rests_key_with_a_colon_and_its_zeros_are_named(tmp_path: Path) -> None:
    rest = line(1, idxs=[1, 0], accept_lengths=[0, 5, 3])
    (choice,) = rest["choices"]
    choice["accept_lengths:"] = choice.pop("accept_lengths")
    del choice["decoding_steps"]
    path = write_lines(tmp_path / "r.jsonl", rest)
    run = imported(tmp_path, f"rest={path}")
    assert [record.accept_lengths for record in run.records] == [(), (3,)]
    counts = [record.imported for record in run.records if record.imported]
    assert [count.num_emitted for count in counts] == [5, 3]
    assert [count.num_steps for count in counts] == [2, 1]
    misspelt, zeros = about(run).oddities
    assert "the key 'accept_lengths:' is misspelt" in misspelt
    assert "1 of 3 accept_lengths are 0" in zeros


def test_lengths_that_do_not_match_the_steps_are_left_out(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "m.jsonl", line(1, accept_lengths=[8]))
    run = imported(tmp_path, str(path))
    assert [record.accept_lengths for record in run.records] == [(), ()]
    (oddity,) = about(run).oddities
    assert "accept_lengths has 1 elements for 3 steps: it is left out" in oddity
    path = write_lines(tmp_path / "n.jsonl", line(1, decoding_steps=[2]))
    with pytest.raises(UserError, match="2 turns, but decoding_steps has 1"):
        imported(tmp_path, str(path))
