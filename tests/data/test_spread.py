"""The order in which --limit takes prompts, and runs of older versions that have no order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import specbench
from specbench.data.prompts import load_prompt_sets, plan_tasks, prompts_of_run
from specbench.data.spread import spread_order
from specbench.log.store import read_header
from specbench.report.commands import full_command
from tests.support.paths import RECORDED_RUNS

SPREAD = ["smollm2-135m-unseen"]
"""The recorded runs that have an order. Older versions took the first prompts."""


@given(st.lists(st.sampled_from("abcd")))
def test_the_order_has_each_prompt_once(categories: list[str]) -> None:
    assert sorted(spread_order(categories)) == list(range(len(categories)))


@given(st.lists(st.sampled_from("abcd"), min_size=1))
def test_categories_take_turns(categories: list[str]) -> None:
    order = spread_order(categories)
    num_categories = len({*categories})
    first_round = [categories[position] for position in order[:num_categories]]
    assert first_round == [*dict.fromkeys(categories)]


def test_each_prompt_is_the_middle_of_the_largest_gap() -> None:
    assert spread_order(["math"] * 8) == [3, 5, 1, 6, 0, 2, 4, 7]
    assert spread_order([]) == []


def test_a_category_that_is_used_up_gives_its_turn_to_others() -> None:
    assert spread_order(["a", "b", "b", "b"]) == [0, 2, 1, 3]


@pytest.mark.parametrize("task", ["mt_bench", "gsm8k"])
def test_a_limit_contains_the_smaller_ones_in_the_order_of_the_file(task: str) -> None:
    tasks = plan_tasks([task], "bundled")
    (whole,) = load_prompt_sets(tasks, "bundled")
    in_file = [prompt.sample_id for prompt in whole.prompts]
    smaller: set[str] = set()
    for num_prompts in range(1, len(in_file) + 1):
        (limited,) = load_prompt_sets(tasks, "bundled", num_prompts=num_prompts, is_spread=True)
        chosen = [prompt.sample_id for prompt in limited.prompts]
        assert len(chosen) == num_prompts
        assert chosen == sorted(chosen, key=in_file.index)
        assert smaller <= {*chosen}
        smaller = {*chosen}


def test_four_prompts_of_mt_bench_have_four_categories() -> None:
    tasks = plan_tasks(["mt_bench"], "bundled")
    (limited,) = load_prompt_sets(tasks, "bundled", num_prompts=4, is_spread=True)
    assert len({prompt.category for prompt in limited.prompts}) == 4


@pytest.mark.parametrize("folder", RECORDED_RUNS, ids=lambda folder: folder.name)
def test_recorded_runs_give_their_old_prompts(folder: Path) -> None:
    header = read_header(folder)
    assert header.spec.values.limit_order == ("spread" if folder.name in SPREAD else "first")
    for stored in header.prompts:
        prompts = prompts_of_run(header, stored)
        assert prompts or stored.source == "paper"  # whose file may not be here
        assert not prompts or prompts.sha256 == stored.sha256


@pytest.mark.slow
def test_an_unfinished_run_without_an_order_continues_with_the_first_prompts(
    tmp_path: Path,
) -> None:
    values: dict[str, Any] = {
        "tasks": "gsm8k",
        "repeats": 1,
        "max_new_tokens": 4,
        "limit": 3,
        "device": "cpu",
        "settings": "paper",
    }
    begun = specbench.run("tiny", "pld", output=tmp_path, limit_order="first", **values)
    prompts = [record.key.sample_id for record in begun.records]
    file = tmp_path / "run.json"
    header = json.loads(file.read_text())
    assert "limit_order" not in header["spec"]["values"]  # as in a run of an older version
    header["status"] = "interrupted"
    file.write_text(json.dumps(header))
    lines = (tmp_path / "samples.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_text("".join(lines[:2]))
    resumed = specbench.run("tiny", "pld", output=tmp_path, resume=True, **values)
    assert [record.key.sample_id for record in resumed.records] == prompts
    assert {*prompts} == {f"gsm8k/{number}" for number in (201, 202, 203)}
    again = specbench.run("tiny", "pld", output=tmp_path / "new", **values)
    assert {record.key.sample_id for record in again.records} != {*prompts}
    assert "--limit-order spread" in full_command(again.header)
    assert "--limit-order first" in full_command(resumed.header)
