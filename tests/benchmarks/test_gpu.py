"""The suite for a GPU: its rows, its goals, and what of it works without a GPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark.expression import Expression
from msgspec.structs import replace

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import goals, rows
from benchmarks.gpu.contexts import measure
from benchmarks.gpu.rows import SELECTED, TESTS, Row, main
from specbench.engine.kernels.pick_ops import TRIED
from specbench.engine.kernels.products import FEW, ROW
from specbench.engine.target import Target
from specbench.log.backend import ExecutionHeader, Kernels, Preparation
from specbench.log.run import Run
from specbench.log.store import read_run
from tests.packaging.shell import ROOT
from tests.support.models import random_llama

SMALL = ("--device", "cpu", "--model", "tiny", "--limit", "1", "--max-new-tokens", "3")
UNUSED = ("datasets", "gguf", "pooch", "aiohttp", "torchao", "xdist")
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
    found = importlib.util.find_spec
    monkeypatch.setattr(command, "find_spec", lambda name: None if name in lacking else found(name))
    assert command.main() == 2
    assert "Not installed: msgspec nvidia-ml-py." in capsys.readouterr().err


def test_the_record_has_every_prompt_and_method_and_three_passes() -> None:
    given = rows._parse(["--limit", "1"])
    (record,) = rows.select(rows.all_rows(given), ["record"])
    spec = record.spec
    assert spec and (spec.model, spec.weights, spec.repeats) == ("vicuna-13b", "stand-in", 3)
    assert (spec.limit, spec.methods, spec.tasks, spec.is_baseline_run) == (None, (), (), True)


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
    done = {name: one["status"] for name, one in rows.read_rows(tmp_path / "rows.jsonl",
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
    found = [*goals.judge({name: tmp_path / name for name in figures})]
    shown = {(one.goal.figure, one.row): (one.value, one.verdict) for one in found}
    assert shown["share_of_limit.*", "run-vicuna-13b"] == (0.76, "PASS")
    assert shown["share_of_limit.eagle2", "run-vicuna-13b"] == (0.74, "FAIL")
    assert shown["host_share.*", "phases-vicuna-13b"] == (0.031, "FAIL")
    assert shown["bandwidth.vanilla", "run-vicuna-13b"] == (0.83, "PASS")
    assert shown["bandwidth.vanilla", "run-*"] == (None, "not measured")
    assert shown["num_late", "run-vicuna-13b"] == (0.0, "PASS")
    assert [(one.goal.figure, one.row) for one in found if one.is_bug] == [
        ("num_late", "phases-vicuna-13b")
    ]


def test_figures_count_what_failed_fell_back_or_was_captured_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = read_run(ROOT / "results/recorded/amd-epyc-2-cores")
    on_cpu = goals.figures(ROOT / "results/recorded/amd-epyc-2-cores")
    assert on_cpu["num_failed"] == 0 and "num_eager" not in on_cpu
    values = replace(stored.header.spec.values, device="cuda:0")
    header = replace(
        stored.header,
        spec=replace(stored.header.spec, values=values),
        kernels=Kernels("triton 3.6.0", "launches do not overlap: the norm is off"),
        execution={
            "vanilla": ExecutionHeader("graph", None),
            "pld": ExecutionHeader("eager", "a capture failed"),
        },
        preparation=Preparation(load_s=1.0, warm_up_s=61.0, num_late=3),
    )
    records = [dataclasses.replace(stored.records[0], status="error"), *stored.records[1:]]
    monkeypatch.setattr(goals, "read_run", lambda path: Run(header, tuple(records)))
    found = goals.figures(Path())
    expected = {"num_failed": 1, "num_eager": 1, "num_fallbacks": 1, "num_late": 3, "warm_up_s": 61}
    assert {name: found[name] for name in expected} == expected


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
    assert "test_native.py" in left_out
    assert all(name.startswith("test_native") for name in left_out)
    assert {"test_few.py", "test_overlap.py", "test_pick_products.py"} <= {*files}


def test_launches_race_at_every_size_of_their_blocks_and_at_eagles_tree() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from tests.engine.kernels.test_overlap import NUM_REPLAYS, TREES

    races = {launch: {n for n, of in TREES if of == launch} for launch in (*ROW, FEW, None)}
    assert NUM_REPLAYS >= 1000
    assert races[FEW] == races[None] >= {2, 16, 17, 26, 33, 64}
    assert all(races[launch] == {1} for launch in ROW)
    assert 26 in {num_rows for num_rows, _ in TRIED}  # the start-up check


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
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for is_first in (True, False):
        done = subprocess.run(
            program, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("run-tiny: every method" in done.stdout) == is_first
    lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == ["run-tiny", "audit-tiny", "contexts-tiny"]
    assert json.loads((out / "contexts-tiny" / "contexts.jsonl").read_text())["context"] == 64
    assert read_run(out / "run-tiny").header.status == "complete"
    assert "identical" in (out / "audit-tiny" / "log.txt").read_text()
    assert "samples that failed" in (out / "table.txt").read_text()
