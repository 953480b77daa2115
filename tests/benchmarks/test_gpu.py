"""The suite for a GPU: its rows, its goals, and the parts that work without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import goals, row, suite
from benchmarks.gpu.plan import NUM_STARTS, START_S, make_plan, plan_text
from benchmarks.gpu.row import PASSED_TESTS, Figures, Row, run_row
from benchmarks.gpu.rows import TESTS
from benchmarks.gpu.suite import main
from tests.support.paths import ROOT
from tests.support.texts import assert_in


def test_the_list_has_every_row_in_order_and_a_wrong_name_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list", "--out", str(tmp_path)]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names[:9] == [
        "kernels", "doctor*", "tests-kernels*", "tests-steps*", "run-tiny*", "audit-tiny*",
        "record-vicuna-13b*", "audit-record-vicuna-13b*", "report*",
    ]  # fmt: skip
    kinds = ("phases", "torch", "plain", "sampling", "eager", "compare", "layers")
    assert {f"{kind}-vicuna-13b" for kind in kinds} < {*names}
    assert {"sglang-llama3-8b", "contexts-llama3-8b", "run-smollm2-135m"} < {*names}
    assert "experts-half-of-mixtral" in names
    assert {f"{kind}-vicuna-7b" for kind in ("run", "audit", "layers")} < {*names}
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


def test_required_rows_decide_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that hangs is stopped when the call ends, and is not tried again after that."""
    hanging = Row("hanging", "", 1, command=("timeit", "-n", "1", "import time; time.sleep(99)"))
    quick = Row("quick", "", 0.1, command=("timeit", "-n", "1", "pass"))
    wrong = Row("wrong", "", 1, command=("timeit", "pass pass"), is_required=False)
    later = Row("later", "", 1000, command=("timeit", "pass"))
    every = [quick, wrong, hanging, later]
    monkeypatch.setattr(suite, "all_rows", lambda given: every)
    monkeypatch.setattr(row, "COLD", 100)
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    call = ["--out", str(tmp_path), "--device", "cpu", "--seconds"]
    began = time.monotonic()
    assert main([*call, "8"]) == 1
    assert time.monotonic() - began < 40
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    settings = ["cpu", "float32", 2, 128]
    ended = row.read_rows(tmp_path / "rows.jsonl", settings)
    done = {name: line["status"] for name, line in ended.items()}
    assert done == {"quick": "ok", "wrong": "failed", "hanging": "stopped"}
    said = capsys.readouterr().out
    assert_in(
        said,
        "later waits for the next call.",
        "Required rows not complete: hanging, later",
    )
    every[2:] = []  # the remaining rows are complete or optional
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


def test_a_goal_is_compared_with_its_worst_figure_and_a_bug_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {
        "record-vicuna-13b": {"nominal.vanilla": 0.81, "step.eagle2": 1.31, "num_late": 0.0}
        | {"share_of_bound.pld": 0.78, "share_of_bound.sps": 0.74, "step_ms.vanilla": 8.6},
        "phases-vicuna-13b": {"verify.eagle2": 1.04, "verify.eagle3": 1.06, "num_late": 2.0},
    }
    for name in figures:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    monkeypatch.setattr(goals, "figures", lambda path: {**figures[path.name]})
    runs = {name: tmp_path / name for name in figures}
    for card, verdict in (("NVIDIA H100 80GB HBM3", "PASS"), ("NVIDIA H200", "no goal for")):
        monkeypatch.setattr(goals, "card_of", lambda path, card=card: card)
        judged = [*goals.judge(runs)]
        shown = {(result.goal.figure, result.row): result for result in judged}
        assert shown["step_ms.vanilla", "record-vicuna-13b"].verdict.startswith(verdict)
        values = {key: (result.value, result.verdict) for key, result in shown.items()}
        expected = {
            ("nominal.vanilla", "record-vicuna-13b"): (0.81, "FAIL"),
            ("step.eagle2", "record-vicuna-13b"): (1.31, "PASS"),
            ("step.eagle3", "record-vicuna-13b"): (None, "not measured"),
            ("verify.eagle*", "phases-vicuna-13b"): (1.06, "FAIL"),
            ("share_of_bound.*", "record-vicuna-13b"): (0.74, "FAIL"),
        }
        assert {place: values[place] for place in expected} == expected
        assert [(bug.goal.figure, bug.row) for bug in judged if bug.is_bug] == [
            ("num_late", "phases-vicuna-13b")
        ]
    assert goals.cards_of(runs) == ["NVIDIA H200"]


def test_figures_of_a_recorded_run_equal_those_of_its_report() -> None:
    figures = goals.figures(ROOT / "results/recorded/h100-vicuna-13b")
    assert figures["step_ms.vanilla"] == pytest.approx(9.22, abs=0.01)
    assert figures["step.eagle2"] == pytest.approx(1.663, abs=0.001)
    assert figures["prompt_ms.vanilla"] == pytest.approx(19.9, abs=0.05)  # over short prompts
    assert "nominal.vanilla" not in figures  # the run did not record the width of the bus


def test_a_plan_leaves_out_rows_that_do_not_fit() -> None:
    names = {"a": 300, "b": 300, "too-long": 600, "its-audit": 10, "c": 100}
    every = [
        Row(name, "", seconds, after="too-long" if name == "its-audit" else "")
        for name, seconds in names.items()
    ]
    started_s = NUM_STARTS * START_S
    plan = make_plan(every, (started_s + 700) / 60)
    assert [[row.name for row in rows] for rows in plan.calls] == [["a"], ["b", "c"]]
    assert [row.name for row in plan.not_run] == ["too-long", "its-audit"]
    assert "Not run: too-long, its-audit" in plan_text(plan)
    less = make_plan(every, (started_s + 699) / 60)
    assert [row.name for row in less.not_run] == ["too-long", "its-audit", "c"]
    assert make_plan(every, 1).calls == []


def test_the_plan_of_half_an_hour_has_the_rows_that_come_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--plan", "30", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    calls = shown.split("call ")[1:]
    assert len(calls) >= 3 and all(int(call.split(": ")[1].split()[0]) <= 540 for call in calls)
    planned, not_run = shown.split("Not run: ")
    assert "audit-record-vicuna-13b" in planned and "run-smollm2-135m" in planned
    assert "run-vicuna-7b" in not_run
    complete = {"row": "kernels", "status": "ok", "seconds": 1.0, "reason": ""}
    line = {**complete, "settings": ["cuda", "bfloat16", 2, 128]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    main(["--plan", "30", "--out", str(tmp_path)])
    assert "kernels   " not in capsys.readouterr().out.split("tests-kernels")[0]


def test_a_row_waits_for_the_row_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = Row("empty", "", 5, command=("timeit", "-n", "1", "pass"), figures=PASSED_TESTS)
    missing = Row("missing", "", 5, command=("timeit", "pass"), figures=Figures("x.jsonl", "."))
    reader = Row("reader", "", 5, command=("timeit", "pass"), after="empty")
    for wrong in (empty, missing):
        ended = run_row(wrong, tmp_path / wrong.name, 60)
        assert ended["status"] == "failed" and "left no figures" in ended["reason"]
    monkeypatch.setattr(suite, "all_rows", lambda given: [empty, reader])
    assert main(["--out", str(tmp_path), "--device", "cpu"]) == 1
    assert "reader waits for empty." in capsys.readouterr().out
