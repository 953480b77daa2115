"""`specbench compare` and `specbench check`: exit codes, and all that they print and write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specbench.log.run import Run
from tests.analysis.run_factory import full_run
from tests.cli.conftest import Specbench
from tests.judge.changing import slower, with_header
from tests.support.records import store as store_run

RUN = full_run(tasks=("gsm8k", "alpaca"))
SLOW = with_header(slower(RUN, {"pld": 1.3}), id="slow")

Store = Callable[[Run, str], Path]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return lambda run, name: store_run(tmp_path / name, run.header, run.records)


def test_compare_writes_its_forms(specbench: Specbench, store: Store) -> None:
    old, new = store(RUN, "old"), store(SLOW, "new")
    crossed = specbench("compare", old, new, "--cross", "sps", "vanilla")
    assert crossed.code == 0 and "SpS in A is 1." in crossed.out
    assert specbench("compare", old, new, "--format", "csv").out.startswith("reference,subject,")
    assert "| *GSM8K* |" in specbench("compare", old, new, "--format", "markdown").out
    assert json.loads(specbench("compare", old, new, "--format", "json").out)["schema"] == 1
    said = specbench("compare", old, new, "--out", "out")
    assert {path.name for path in Path("out").iterdir()} == {
        "comparison.md", "comparison.csv", "comparison.json"
    }  # fmt: skip
    assert "comparison.md" in said.err


def test_a_paper_gets_a_sentence_a_table_of_its_columns_and_a_bibliography(
    specbench: Specbench, store: Store
) -> None:
    run = store(RUN, "run")
    said = specbench("compare", run, "--cross", "pld", "sps")
    words = " ".join(said.out.split())
    assert said.code == 0 and "PLD is 0." in words and "times as fast as SpS, on average" in words
    form = ("--format", "latex", "--columns", "mean")
    table = specbench("report", run, *form, "--ours", "pld", "--ours", "SPS").out
    assert table.count(r"\specbenchours{") == 2 and "{Mean}" in table and "{GSM8K}" not in table
    specbench("report", run, "--out", "paper", "--columns", "speedup", "--ours", "pld")
    assert r"\specbenchours{PLD}" in Path("paper/table.tex").read_text()
    assert "@misc{pld," in Path("paper/methods.bib").read_text()
    assert "@misc{pld," in specbench("report", run, "--format", "bibtex").out


def test_two_methods_of_one_run_have_its_warnings_once(specbench: Specbench, store: Store) -> None:
    run = store(with_header(RUN, warnings=("The machine was busy.",)), "run")
    said = specbench("compare", run, "--cross", "pld", "sps").out
    assert said.count("The machine was busy.") == 1 and "A: The machine" not in said


def test_compare_refuses_other_work_unless_forced(specbench: Specbench, store: Store) -> None:
    other = with_header(RUN, id="other", spec__values__max_new_tokens=256)
    refused = specbench("compare", store(RUN, "old"), store(other, "new"))
    assert refused.code == 2
    assert "\n  --max-new-tokens: 128 -> 256\n" in refused.err
    forced = specbench("compare", "old", "new", "--force")
    assert forced.code == 0
    assert forced.out.startswith("NOT COMPARABLE")


def test_check_ends_with_0_1_or_3_and_writes_what_it_found(
    specbench: Specbench, store: Store
) -> None:
    new, old = store(SLOW, "new"), store(RUN, "old")
    said = specbench("check", old, "--baseline", old)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("Passed:")
    call = ("check", new, "--baseline", old)
    said = specbench(*call, "--junit", "deep/gate.xml")
    assert said.code == 1
    assert "FAILED: new is worse than" in said.out
    assert ElementTree.parse("deep/gate.xml").getroot().get("failures") == "3"
    (listed,) = json.loads(specbench(*call, "--json").out)["runs"]
    assert (listed["baseline"], listed["is_passed"]) == ("old", False)
    assert specbench(*call, "--max-slowdown", "40%").code == 0
    assert specbench(*call, "--speed", "never").code == 0
    stored_run = store(full_run(tasks=("gsm8k",), num_samples=1), "one")
    said = specbench("check", stored_run, "--baseline", stored_run)
    assert (said.code, said.out.splitlines()[0].startswith("Nothing was checked")) == (3, True)
