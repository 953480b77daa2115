"""Commands for runs that are handed on: verify, merge and site."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import RunFolderError
from specbench.judge.files import verify
from specbench.log.store import read_run
from specbench.measure.resume import resumed_header
from tests.cli.conftest import Specbench
from tests.judge.making import good_header, good_records, rewrite, setting, store


def test_the_command_ends_with_1_for_a_fault_and_lists_it_as_json(
    specbench: Specbench, tmp_path: Path
) -> None:
    good, bad = store(tmp_path / "good"), store(tmp_path / "bad")
    rewrite(bad, setting(0, seed=1))
    said = specbench("verify", good)
    assert (said.code, "good: sound, for the leaderboard" in said.out) == (0, True)
    said = specbench("verify", good, bad, "--json")
    assert said.code == 1
    first, second = json.loads(said.out)["runs"]
    assert first["is_eligible"] and not second["is_sound"]
    assert "the seed 1" in second["faults"][0]
    excluded = store(tmp_path / "excluded", is_audited=False)
    assert specbench("verify", excluded).code == 0
    assert specbench("verify", excluded, "--leaderboard").code == 1


def test_a_merged_run_is_written_read_and_verified(specbench: Specbench, tmp_path: Path) -> None:
    later = [replace(one, prefill_s=0.4) for one in good_records()]
    paths = store(tmp_path / "one"), store(tmp_path / "two", good_header(id="two"), later)
    said = specbench("merge", *paths, "--out", "both")
    assert said.code == 0, said.err
    assert "8 records of 2 runs" in said.err
    run = read_run(Path("both"))
    assert [record.origin for record in run.records] == ["one"] * 4 + ["two"] * 4
    found = verify(Path("both"))
    assert found.faults == ()
    assert "There is no audit" in found.exclusions[0]
    assert specbench("merge", *paths, "--out", "both").code == 2
    with pytest.raises(RunFolderError, match="merged from 2 runs"):
        resumed_header(run, run.header, is_forced=True)


def test_a_site_without_runs_or_with_an_unknown_price_is_refused(
    specbench: Specbench, tmp_path: Path
) -> None:
    empty = specbench("site", tmp_path, "--out", "out")
    assert empty.code == 2 and "There is no run in" in empty.err
    run = store(tmp_path / "one")
    unknown = specbench("site", run, "--out", "out", "--price", "Example CPU=1")
    assert unknown.code == 2 and "No machine 'Example CPU'" in unknown.err
    assert "Example CPU 9000, threads: 2" in unknown.err
    assert not Path("out").exists()
