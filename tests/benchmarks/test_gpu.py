"""The suite for a GPU: its rows, its goals, and the parts that work without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import goals, rows
from benchmarks.gpu.rows import TESTS, Row, main
from specbench.log.store import read_run
from tests.packaging.shell import ROOT, output

SMALL = ("--device", "cpu", "--model", "tiny", "--limit", "1", "--max-new-tokens", "3")
UNUSED = ("datasets", "gguf", "pooch", "aiohttp", "xdist")
"""Packages that a machine with a GPU may lack."""


def test_the_list_has_every_row_in_order_and_a_wrong_name_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list", "--out", str(tmp_path)]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names[:9] == [
        "kernels", "doctor*", "run-tiny*", "audit-tiny*", "tests-kernels*", "tests-steps*",
        "run-vicuna-13b*", "audit-vicuna-13b*", "record-vicuna-13b*",
    ]  # fmt: skip
    kinds = ("phases", "eager", "torch", "plain", "compare", "sampling", "layers", "contexts")
    assert {f"{kind}-vicuna-13b" for kind in kinds} < {*names}
    assert {f"{kind}-vicuna-7b" for kind in ("run", "audit", "layers", "contexts")} < {*names}
    assert main(["--only", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.missing() == []
    lacking = ("msgspec", "pynvml")
    real_find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        command, "find_spec", lambda name: None if name in lacking else real_find_spec(name)
    )
    assert command.main() == 2
    assert "Not installed: msgspec nvidia-ml-py." in capsys.readouterr().err


def test_rows_end_with_the_call_and_the_exit_status_is_that_of_the_required_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that hangs is stopped at the call's end, without a second try beyond it."""
    hanging = Row("hanging", "", 1, command=("timeit", "-n", "1", "import time; time.sleep(99)"))
    quick = Row("quick", "", 0.1, command=("timeit", "-n", "1", "pass"))
    wrong = Row("wrong", "", 1, command=("timeit", "pass pass"), is_required=False)
    later = Row("later", "", 1000, command=("timeit", "pass"))
    every = [quick, wrong, hanging, later]
    monkeypatch.setattr(rows, "all_rows", lambda given: every)
    monkeypatch.setattr(rows, "COLD", 100)
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    call = ["--out", str(tmp_path), "--device", "cpu", "--seconds"]
    began = time.monotonic()
    assert main([*call, "8"]) == 1
    assert time.monotonic() - began < 40
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    done = {name: row["status"] for name, row in rows.read_rows(tmp_path / "rows.jsonl",
            ["cpu", "float32", 2, 128]).items()}  # fmt: skip
    assert done == {"quick": "ok", "wrong": "failed", "hanging": "stopped"}
    said = capsys.readouterr().out
    assert "later waits for the next call." in said
    assert "Required rows not complete: hanging, later" in said
    every[2:] = []  # all that is left is complete, or need not be
    assert main([*call, "8"]) == 0
    assert "quick: " not in capsys.readouterr().out


def test_every_test_that_needs_a_gpu_is_in_a_row() -> None:
    paths = tuple(path for files in TESTS.values() for path in files if path[0] != "-")
    assert all((ROOT / path).exists() for path in paths)
    needing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark." + "gpu" in path.read_text("utf-8")
    ]
    assert needing and all(path.startswith(paths) for path in needing)


def test_a_goal_is_compared_with_its_worst_figure_and_a_bug_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {
        "run-vicuna-13b": {"bandwidth.vanilla": 0.83, "bandwidth.eagle2": 0.6, "num_late": 0.0}
        | {"share_of_limit.eagle2": 0.74, "share_of_limit.pld": 0.78, "share_of_limit.sps": 0.76},
        "phases-vicuna-13b": {"host_share.pld": 0.02, "host_share.eagle2": 0.031, "num_late": 2.0},
    }
    for name in figures:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    monkeypatch.setattr(goals, "figures", lambda path: {**figures[path.name]})
    verdicts = [*goals.judge({name: tmp_path / name for name in figures})]
    shown = {
        (verdict.goal.figure, verdict.row): (verdict.value, verdict.verdict) for verdict in verdicts
    }
    assert shown["share_of_limit.*", "run-vicuna-13b"] == (0.76, "PASS")
    assert shown["share_of_limit.eagle2", "run-vicuna-13b"] == (0.74, "FAIL")
    assert shown["host_share.*", "phases-vicuna-13b"] == (0.031, "FAIL")
    assert shown["bandwidth.vanilla", "run-vicuna-13b"] == (0.83, "PASS")
    assert shown["bandwidth.vanilla", "run-*"] == (None, "not measured")
    assert shown["num_late", "run-vicuna-13b"] == (0.0, "PASS")
    assert [(verdict.goal.figure, verdict.row) for verdict in verdicts if verdict.is_bug] == [
        ("num_late", "phases-vicuna-13b")
    ]


@pytest.mark.slow
def test_the_suite_runs_without_a_gpu_or_rarer_packages_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery as m\nfind = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = classmethod(lambda cls, name, *more: None "
        f"if name.split('.')[0] in {UNUSED} else find(name, *more))\n"
    )
    only = [word for row in ("run", "contexts", "audit") for word in ("--only", row)]
    program = [sys.executable, "-m", "benchmarks.gpu", *SMALL, "--out", str(out), *only]
    for is_first in (True, False):
        said = output(program, ROOT, path=[tmp_path, ROOT], timeout=900)
        assert ("run-tiny: every method" in said) == is_first
    lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == ["run-tiny", "audit-tiny", "contexts-tiny"]
    assert json.loads((out / "contexts-tiny" / "contexts.jsonl").read_text())["context"] == 64
    assert read_run(out / "run-tiny").header.status == "complete"
    assert "identical" in (out / "audit-tiny" / "log.txt").read_text()
    assert "samples that failed" in (out / "table.txt").read_text()
