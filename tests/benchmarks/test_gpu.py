"""The suite for a GPU: its rows, its goals, and what of it works without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark.expression import Expression

from benchmarks.gpu import goals
from benchmarks.gpu.__main__ import SELECTED, TESTS, main
from benchmarks.gpu.contexts import measure
from specbench.engine.target import Target
from specbench.log.store import read_run
from tests.packaging.shell import ROOT
from tests.support.models import random_llama

SMALL = ("--device", "cpu", "--model", "tiny", "--limit", "1", "--max-new-tokens", "3")


def test_the_list_has_every_row_and_a_wrong_name_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list", "--out", str(tmp_path)]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names[:4] == ["doctor", "checks", "tests", "run-vicuna-13b"] and names[-1] == "report"
    kinds = ("run", "phases", "eager", "audit", "compare", "layers", "contexts")
    for model in ("vicuna-13b", "llama3-8b", "vicuna-7b"):
        assert {f"{kind}-{model}" for kind in kinds} < {*names}
    assert main(["--only", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err


def test_every_test_that_needs_a_gpu_is_in_a_row() -> None:
    assert all((ROOT / path).exists() for path in TESTS)
    needing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark." + "gpu" in path.read_text("utf-8")
    ]
    assert needing and all(path.startswith(TESTS) for path in needing)


def test_a_goal_is_compared_with_its_worst_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {
        "run-vicuna-13b": {"vanilla_share": 0.86, "load_s": 25.0, "num_late": 0.0}
        | {"share_of_limit.eagle2": 0.79, "share_of_limit.pld": 0.78, "share_of_limit.sps": 0.76},
        "phases-vicuna-13b": {"host_share.pld": 0.02, "host_share.eagle2": 0.031},
    }
    for name in figures:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    monkeypatch.setattr(goals, "figures", lambda path: {**figures[path.name]})
    found = [*goals.judge({name: tmp_path / name for name in figures})]
    shown = {(one.goal.figure, one.row): (one.value, one.verdict) for one in found}
    assert shown["share_of_limit.*", "run-vicuna-13b"] == (0.76, "PASS")
    assert shown["share_of_limit.eagle2", "run-vicuna-13b"] == (0.79, "FAIL")
    assert shown["host_share.*", "phases-vicuna-13b"] == (0.031, "FAIL")
    assert shown["vanilla_share", "run-vicuna-13b"] == (0.86, "PASS")
    assert shown["vanilla_share", "run-*"] == (None, "not measured")
    assert shown["num_late", "run-vicuna-13b"] == (0.0, "PASS")


def test_a_longer_context_has_a_larger_share_of_the_bytes() -> None:
    target = Target(random_llama().float())
    with torch.inference_mode():
        short, long = (measure(target, length, 1e9) for length in (8, 200))
    assert long["cache_share"] > 10 * short["cache_share"]
    assert all(row["step_ms"] > 0 < row["share"] for row in long["rows"].values())


def test_the_plan_has_the_tests_of_every_kernel_for_gpus() -> None:
    selected: Any = Expression.compile(SELECTED)
    files = [path.name for path in (ROOT / "tests/engine/kernels").glob("test_*.py")]
    left_out = {
        name
        for name in files
        if not selected.evaluate(lambda word, at=name: word in f"kernels/{at}")
    }
    assert left_out == {"test_native.py"}
    assert {"test_few.py", "test_overlap.py", "test_pick_products.py"} <= {*files}


@pytest.mark.slow
def test_the_suite_runs_without_a_gpu_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    only = [word for row in ("run", "contexts", "audit") for word in ("--only", row)]
    command = [sys.executable, "-m", "benchmarks.gpu", *SMALL, "--out", str(out), *only]
    for is_first in (True, False):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("run-tiny: every method" in done.stdout) == is_first
    lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == ["run-tiny", "audit-tiny", "contexts-tiny"]
    assert read_run(out / "run-tiny").header.status == "complete"
    assert json.loads((out / "contexts-tiny" / "contexts.jsonl").read_text())["context"] == 64
    assert "identical" in (out / "audit-tiny" / "log.txt").read_text()
    assert "others against their limit" in (out / "table.txt").read_text()
