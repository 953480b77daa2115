"""Real serving engines on `tiny`: the same greedy answers as ours, and the same accepted tokens.

They take minutes to start. `make test-engines` runs them; CONTRIBUTING says how to install engines.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.bootstrap import Bootstrap, Estimate
from specbench.log.store import StoredRun, read_run

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SAME: dict[str, Any] = {
    "tasks": "gsm8k,alpaca", "limit": 2, "max_new_tokens": 48, "dtype": "float32", "device": "cpu",
}  # fmt: skip


def command(variable: str, name: str) -> str:
    """The command of an engine; skips the test without one."""
    found = os.environ.get(variable) or shutil.which(name)
    if not found:
        pytest.skip(f"needs {name} on the PATH, or {variable} with its path")
    return found


def run_engine(folder: Path, name: str, executable: str, methods: str, model: str) -> StoredRun:
    specbench.run(
        model, methods, output=folder, backend="server", serving_engine=name,
        engine_command=(executable,), concurrency=(1, 4), **SAME,
    )  # fmt: skip
    return read_run(folder)


def answers(run: StoredRun, method: str) -> dict[tuple[str, int, int], tuple[int, ...]]:
    return {
        (one.key.sample_id, one.key.turn, one.key.concurrency): one.token_ids
        for one in run.records
        if one.key.method == method and one.is_ok
    }


def mat(metrics: RunMetrics, method: str) -> float:
    value = metrics.pooled(method, 0.0).mat
    assert isinstance(value, Estimate), value
    return value.value


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    folder = tmp_path_factory.mktemp("ours") / "run"
    specbench.run("tiny", "sps:num_tokens=4,schedule=constant", output=folder, **SAME)
    return read_run(folder)


def check_answers(run: StoredRun, ours: StoredRun) -> None:
    """No answer failed, and every greedy one is our vanilla's."""
    assert [(one.key.method, one.error) for one in run.records if not one.is_ok] == []
    expected = answers(ours, "vanilla")
    for method in run.header.methods:
        found = answers(run, method)
        assert {(sample, turn, 0) for sample, turn, _ in found} == expected.keys()
        for (sample, turn, _), ids in found.items():
            assert ids == expected[sample, turn, 0], f"{method} on {sample}"


def test_vllm_gives_our_answers_and_counts(tmp_path: Path, ours: StoredRun) -> None:
    executable = command("SPECBENCH_VLLM", "vllm")
    run = run_engine(tmp_path / "run", "vllm", executable, "ngram,sps,eagle3", "tiny")
    check_answers(run, ours)
    own = mat(measure(ours, Bootstrap(10)), "sps:num_tokens=4,schedule=constant")
    assert mat(measure(run, Bootstrap(10)), "sps") == pytest.approx(own, rel=0.03)


def test_llamacpp_gives_our_answers(tmp_path: Path, ours: StoredRun) -> None:
    executable = command("SPECBENCH_LLAMA_SERVER", "llama-server")
    folder = os.environ.get("SPECBENCH_LLAMA_MODEL")
    if not folder:
        pytest.skip("needs SPECBENCH_LLAMA_MODEL: a folder with tiny as a GGUF file")
    methods = f"ngram,sps:weights={Path(folder) / 'sps'}"
    run = run_engine(tmp_path / "run", "llamacpp", executable, methods, folder)
    check_answers(run, ours)
    assert [name.partition(":")[0] for name in run.header.methods] == ["vanilla", "ngram", "sps"]
