"""Commands for runs that are shared: check without a baseline, merge and site."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specbench.errors import RunFolderError
from specbench.judge.files import check_files
from specbench.log.store import read_run
from specbench.measure.resume import resumed_header
from tests.cli.conftest import Specbench
from tests.judge.making import good_header, good_records, rewrite, setting, store
from tests.support.texts import assert_in


def test_the_command_ends_with_1_for_a_fault_and_lists_it_as_json(
    specbench: Specbench,
    tmp_path: Path,
) -> None:
    good, bad = store(tmp_path / "good"), store(tmp_path / "pool" / "run-2")
    rewrite(bad, setting(0, seed=1))
    said = specbench("check", good, code=0)
    assert_in(
        said.out,
        "good: sound, for the leaderboard",
        "no baseline: files only",
    )
    said = specbench("check", good, bad, "--json", "--junit", "files.xml", code=1)
    suites = ElementTree.parse("files.xml").getroot()
    assert [(suite.get("failures"), suite.get("skipped")) for suite in suites] == [
        ("0", "5"),
        ("1", "5"),
    ]
    first, second = json.loads(said.out)["runs"]
    assert first["is_eligible"] and not second["is_sound"]
    assert "seed 1 does not follow" in second["faults"][0]
    store(tmp_path / "pool" / "run-1")
    said = specbench("check", tmp_path / "pool", "--json", code=1)
    assert [run_facts["is_sound"] for run_facts in json.loads(said.out)["runs"]] == [True, False]
    excluded = store(tmp_path / "excluded", is_audited=False)
    assert specbench("check", excluded).code == 0
    assert specbench("check", excluded, "--leaderboard").code == 1


def test_older_names_of_commands_still_work_and_name_the_new_ones(
    specbench: Specbench,
    tmp_path: Path,
) -> None:
    good = store(tmp_path / "good")
    for old, new in (
        (("verify", good), ("check", good)),
        (("verify", good, "--json", "--leaderboard"), ("check", good, "--json", "--leaderboard")),
        (("plan", good), ("report", good, "--plan")),
        (("schema", "record"), ("show", "schema", "record")),
        (("schema",), ("show", "schema")),
    ):
        before, now = specbench(*old), specbench(*new)
        assert (before.code, before.out) == (now.code, now.out) and now.out
        assert before.err.startswith(f"`specbench {old[0]}") and before.err.count("\n") == 1
        assert f"`specbench {new[0]}" in before.err


def test_a_merged_run_is_written_read_and_verified(specbench: Specbench, tmp_path: Path) -> None:
    later = [replace(record, prefill_s=0.4) for record in good_records()]
    paths = store(tmp_path / "one"), store(tmp_path / "two", good_header(id="two"), later)
    assert "8 records of 2 runs" in specbench("merge", *paths, "--out", "both", code=0).err
    run = read_run(Path("both"))
    assert [record.origin for record in run.records] == ["one"] * 4 + ["two"] * 4
    about = check_files(Path("both")).about
    assert about["faults"] == []
    assert "There is no audit" in about["exclusions"][0]
    assert specbench("merge", *paths, "--out", "both").code == 2
    with pytest.raises(RunFolderError, match="merged from 2 runs"):
        resumed_header(run, run.header, is_forced=True)
