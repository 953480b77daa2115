"""`--settings auto` in a run, and in commands that read the run: resume, repeat, check, audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.log.store import read_run
from tests.cli.conftest import Specbench, cut

CALL = (
    "run", "--method", "eagle2,pld:num_tokens=2", "--dataset", "gsm8k", "--limit", "2",
    "--max-new-tokens", "12", "--repeats", "1", "--offline",
)  # fmt: skip


def options(folder: str) -> dict[str, dict[str, object]]:
    return {
        label: method.options for label, method in read_run(Path(folder)).header.methods.items()
    }


@pytest.mark.slow
def test_all_commands_read_the_settings_of_a_run(
    specbench: Specbench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SPECBENCH_RUN_SETTINGS")
    monkeypatch.setattr("specbench.settings.tuned_settings._path_of", lambda *_: None)
    specbench(*CALL, "--output", "tuned", code=0)
    header = read_run(Path("tuned")).header
    eagle2 = header.methods["eagle2"]
    assert eagle2.settings and eagle2.settings.source == "auto"
    nodes = eagle2.options["total_tokens"]
    assert nodes < 60 and eagle2.settings.paper["total_tokens"] == 60
    assert header.method("eagle2").label == f"EAGLE-2 ({nodes} nodes; paper: 60 nodes, 6 levels)"
    assert header.method("pld:num_tokens=2").label == "PLD (num_tokens=2)"
    assert header.methods["pld:num_tokens=2"].settings is None
    assert set(header.threads.row_step_s) >= {"1", "60"} if header.threads else False
    used = {n for r in read_run(Path("tuned")).records if r.key.method == "eagle2"
            for n in r.num_nodes}  # fmt: skip
    assert used == {nodes}

    # A resumed run keeps its settings, although this process could choose others.
    monkeypatch.setattr(
        "specbench.settings.quick_rule.choose_settings", lambda *_: pytest.fail("chosen")
    )
    cut(Path("tuned"), -3)
    said = specbench("run", "--output", "tuned", "--resume", code=0)
    run = read_run(Path("tuned"))
    assert len(run.records) == 6 and run.header.methods["eagle2"] == eagle2
    assert {n for r in run.records if r.key.method == "eagle2" for n in r.num_nodes} == {nodes}

    advice = "To reuse them: --settings"
    assert f"{advice} tuned" in said.err  # the resumed run's settings were chosen by `auto`
    said = specbench(*CALL, "--settings", "tuned", "--output", "again")
    assert options("again") == options("tuned") and advice not in said.err
    specbench(*CALL, "--settings", "paper", "--output", "paper")
    said = specbench("check", "paper", "--baseline", "tuned")
    assert said.code == 3 and "Not judged" in said.out and "--settings tuned" in said.out
    said = specbench("check", "again", "--baseline", "tuned", "--speed", "never")
    assert "settings" not in said.out  # the settings are equal, so it is judged
    assert "from A to B: eagle2: " in specbench("compare", "tuned", "paper").out
    merge = ("merge", "tuned", "paper", "--out", "both")
    assert "options of eagle2" in specbench(*merge, code=2).err
    said = specbench("audit", "tuned", "--offline", code=0)
    assert said.out.count(f"({nodes} nodes;") == 2, said.out
