"""The parts of the GPU suite: names, goals and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.goals import judge
from benchmarks.gpu.ledger import Ended
from benchmarks.gpu.parts import MODELS, TESTS, Settings, all_parts, select
from benchmarks.gpu.table import render
from specbench.errors import UserError

ROOT = Path(__file__).parents[2]
PARTS = all_parts(Settings())


def names(**chosen: Any) -> list[str]:
    options = {"is_plan": True, "only": (), "first": None, **chosen}
    return [part.name for part in select(PARTS, **options)]


def test_the_parts_of_the_plan_have_their_order() -> None:
    assert names() == [
        "checks", "tests", *(f"layers-{model}" for model in MODELS), "suite-vicuna-13b",
        "suite-llama3-8b", "suite-vicuna-7b", "sampling-vicuna-13b",
        "contexts-vicuna-13b", "contexts-llama3-8b",
    ]  # fmt: skip
    assert all(part.estimate_s < part.limit_s <= 500 for part in PARTS)


def test_without_plan_the_suite_runs() -> None:
    suites = [f"suite-{model}" for model in MODELS]
    assert names(is_plan=False) == ["doctor", "checks", *suites, "report"]


def test_every_test_that_needs_a_gpu_is_in_the_plan() -> None:
    assert all((ROOT / path).exists() for path in TESTS)
    needing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark." + "gpu" in path.read_text("utf-8")
    ]
    assert needing and all(path.startswith(TESTS) for path in needing)


def test_parts_are_selected_by_name_by_kind_or_from_a_first_one() -> None:
    assert names(only=("suite", "tests"))[:2] == ["tests", "suite-vicuna-13b"]
    assert names(only=("layers-vicuna-7b",)) == ["layers-vicuna-7b"]
    assert names(first="sampling")[0] == "sampling-vicuna-13b"
    assert names(only=("suite",), first="suite-llama3-8b") == ["suite-llama3-8b", "suite-vicuna-7b"]
    with pytest.raises(UserError, match="suit"):
        names(only=("suit",))
    with pytest.raises(UserError, match="comes after sampling"):
        names(only=("checks",), first="sampling")


def test_the_list_shows_estimates_limits_and_parts_that_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--plan", "--list", "--out", str(tmp_path), "--model", "tiny"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "120 s" in lines["checks"] and "300 s" in lines["checks"]
    assert "the shape of tiny is not known" in lines["layers-tiny"]
    assert main(["--only", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err


METHODS = {
    name: {
        "speedup": 1.0, "mat": 1.0, "step_ms": 6.0, "step_cost": 1.0, "limit": 1.0,
        "share_of_limit": share,
    }
    for name, share in {"vanilla": 1.0, "pld": 0.78, "sps": 0.76, "eagle2": 0.79}.items()
}  # fmt: skip
FIGURES: dict[str, dict[str, Any]] = {
    "suite-vicuna-13b": {
        "methods": METHODS, "vanilla_bandwidth_share": 0.86, "num_late": 0, "build_s": 25.0,
        "host": {"pld": {"share": 0.02, "ms": 0.1}, "eagle2": {"share": 0.031, "ms": 0.2}},
    },
    "suite-vicuna-7b": {"methods": METHODS, "vanilla_bandwidth_share": "weights fit the cache"},
    "layers-vicuna-7b": {
        "ways": ["triton", "torch"],
        "layer": {"1": [{"us": 90.0, "share": 0.9}, {"us": 120.5, "share": 0.7}]},
    },
    "contexts-llama3-8b": {
        "context_8192": {"prefill_s": 0.3, "rows": {"1": {"step_ms": 4.321, "share": 0.8}}}
    },
}  # fmt: skip


def test_a_goal_is_compared_with_its_worst_figure() -> None:
    found = {(one.goal.figure, one.part): one for one in judge(FIGURES)}
    limit = found["methods.*.share_of_limit", "suite-vicuna-13b"]
    assert (limit.name, limit.value, limit.verdict) == ("methods.sps.share_of_limit", 0.76, "PASS")
    eagle2 = found["methods.eagle2.share_of_limit", "suite-vicuna-7b"]
    assert (eagle2.value, eagle2.verdict) == (0.79, "FAIL")
    host = found["host.*.share", "suite-vicuna-13b"]
    assert (host.name, host.verdict) == ("host.eagle2.share", "FAIL")
    assert found["vanilla_bandwidth_share", "suite-vicuna-13b"].verdict == "PASS"
    assert found["vanilla_bandwidth_share", "suite-vicuna-7b"].verdict == "not measured"
    assert found["vanilla_bandwidth_share", "suite-llama3-8b"].verdict == "not measured"
    assert found["build_s", "suite-vicuna-13b"].verdict == "FAIL"
    assert found["num_late", "suite-vicuna-13b"].verdict == "PASS"


def test_one_text_shows_parts_models_and_goals() -> None:
    ended = {name: Ended(name, "ok", 12.3, "now", None, own) for name, own in FIGURES.items()}
    text = render(PARTS, ended)
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "eagle2 1 1 6 1 1 79.0% 0.2 3.1% - -" in lines
    assert any(line.startswith("time to build the stand-in") and "FAIL" in line for line in lines)
    assert "1 90.0 us 90.0% 120.5 us 70.0%" in lines
    assert "8192 0.3 s 1: 4.32 80.0%" in lines
