"""The exit codes and the output of `specbench compare` and `specbench check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specbench.log.run import Run
from tests.analysis.run_factory import full_run
from tests.cli.conftest import Specbench
from tests.judge.changing import slower, with_header
from tests.support.records import store as store_run
from tests.support.texts import assert_in

RUN = full_run(tasks=("gsm8k", "alpaca"))
SLOW = with_header(slower(RUN, {"pld": 1.3}), id="slow")

Store = Callable[[Run, str], Path]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return lambda run, name: store_run(tmp_path / name, run.header, run.records)


def test_compare_writes_every_format(specbench: Specbench, store: Store) -> None:
    compare = partial(
        specbench,
        "compare",
        store(RUN, "old"),
        store(SLOW, "new"),
    )
    assert "SpS in A is 1." in compare("--cross", "sps", "vanilla", code=0).out
    assert compare("--format", "csv").out.startswith("reference,subject,")
    assert "| *GSM8K* |" in compare("--format", "markdown").out
    assert json.loads(compare("--format", "json").out)["schema"] == 1
    said = compare("--out", "out")
    written = sorted(path.name for path in Path("out").iterdir())
    assert written == ["comparison.csv", "comparison.json", "comparison.md"]
    assert "comparison.md" in said.err


def test_a_paper_gets_a_sentence_a_table_of_its_columns_and_a_bibliography(
    specbench: Specbench,
    store: Store,
) -> None:
    run = store(RUN, "run")
    said = specbench("compare", run, "--cross", "pld", "sps", code=0)
    words = " ".join(said.out.split())
    assert_in(words, "PLD is 0.", "times as fast as SpS, on average")
    report = partial(specbench, "report", run)
    form = ("--format", "latex", "--columns", "mean")
    table = report(*form, "--ours", "pld", "--ours", "SPS").out
    assert table.count(r"\specbenchours{") == 2
    assert "{Mean}" in table
    assert "{GSM8K}" not in table
    report("--out", "paper", "--columns", "speedup", "--ours", "pld")
    assert r"\specbenchours{PLD}" in Path("paper/table.tex").read_text()
    assert "@misc{pld," in Path("paper/methods.bib").read_text()
    assert "@misc{pld," in report("--format", "bibtex").out


def test_warnings_of_a_run_occur_once(specbench: Specbench, store: Store) -> None:
    run = store(with_header(RUN, warnings=("The machine was busy.",)), "run")
    said = specbench("compare", run, "--cross", "pld", "sps").out
    assert said.count("The machine was busy.") == 1
    assert "A: The machine" not in said


def test_compare_refuses_other_work_unless_forced(specbench: Specbench, store: Store) -> None:
    other = with_header(RUN, id="other", spec__values__max_new_tokens=256)
    refused = specbench("compare", store(RUN, "old"), store(other, "new"), code=2)
    assert "\n  --max-new-tokens: 128 -> 256\n" in refused.err
    assert specbench("compare", "old", "new", "--force", code=0).out.startswith("NOT COMPARABLE")


def test_check_passes_a_run_against_itself(specbench: Specbench, store: Store) -> None:
    run = store(RUN, "old")
    said = specbench("check", run, "--baseline", run, code=0)
    assert said.err == ""
    assert said.out.startswith("Passed:")


def test_check_fails_a_slower_run(specbench: Specbench, store: Store) -> None:
    check = partial(
        specbench,
        "check",
        store(SLOW, "new"),
        "--baseline",
        store(RUN, "old"),
    )
    assert "FAILED: new is worse than" in check("--junit", "deep/gate.xml", code=1).out
    assert ElementTree.parse("deep/gate.xml").getroot().get("failures") == "3"
    (listed,) = json.loads(check("--json").out)["runs"]
    assert listed["baseline"] == "old"
    assert listed["is_passed"] is False
    assert check("--max-slowdown", "40%").code == 0
    assert check("--speed", "never").code == 0


def test_check_ends_with_3_if_nothing_could_be_checked(specbench: Specbench, store: Store) -> None:
    run = store(full_run(tasks=("gsm8k",), num_samples=1), "one")
    assert specbench("check", run, "--baseline", run, code=3).out.startswith("Nothing was checked")
