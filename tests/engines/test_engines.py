"""Real serving engines on `tiny` give the same greedy answers as ours, and accept the same tokens.

They take minutes to start. `make test-engines` runs them; CONTRIBUTING says how to install engines.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.run import Run
from specbench.log.store import read_run
from tests.analysis.run_factory import number
from tests.engines.installed import TASKS, installed

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SAME: dict[str, Any] = {
    "prompts": "bundled", "tasks": TASKS, "limit": 2, "max_new_tokens": 48, "dtype": "float32",
    "device": "cpu",
}  # fmt: skip
CHAINS = {
    "ngram": "pld:num_tokens=5,allow_shorter=true",
    "sps": "sps:num_tokens=4,schedule=constant",
    "eagle3": "eagle3:depth=3,top_k=1,total_tokens=5",
    "medusa": "medusa:tree=1x1x1x1",
}
"""Our methods that draft the same chains as an engine's."""


@pytest.fixture(scope="module")
def our_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("ours") / "run"
    specbench.run("tiny", [*CHAINS.values()], output=folder, settings="paper", **SAME)
    return read_run(folder)


def answers(run: Run, method: str) -> dict[tuple[str, int, int], tuple[int, ...]]:
    return {
        (record.key.sample_id, record.key.turn, record.key.concurrency): record.token_ids
        for record in run.records
        if record.key.method == method and record.is_ok and not record.key.temperature
    }


def mat(metrics: RunMetrics, method: str) -> float:
    return number(metrics.pooled(method, 0.0).mat)


@pytest.mark.parametrize(
    ("name", "of_its_own", "temperatures"),
    [("vllm", set(), (0.0,)), ("llamacpp", {"ngram"}, (0.0, 1.0))],
    ids=["vllm", "llamacpp"],
)
def test_an_engine_gives_our_answers_and_our_mean_accepted_tokens(
    name: str, of_its_own: set[str], temperatures: tuple[float, ...], tmp_path: Path, our_run: Run
) -> None:
    """`of_its_own` are the methods that draft differently from ours. The audit finds nothing."""
    engine = installed(name)
    specbench.run(
        engine.model, engine.methods, output=tmp_path / "run", backend="server",
        serving_engine=name, engine_command=engine.command, concurrency=(1, 2),
        temperatures=temperatures, threads=1, **SAME,
    )  # fmt: skip
    run = read_run(tmp_path / "run")
    assert [(record.key.method, record.error) for record in run.records if not record.is_ok] == []
    expected = answers(our_run, "vanilla")
    for method in run.header.methods:
        ids_by_sample = answers(run, method)
        assert len(ids_by_sample) == 2 * len(expected), method
        for (sample, turn, _), ids in ids_by_sample.items():
            assert ids == expected[sample, turn, 0], f"{method} on {sample}"
    our_metrics = measure(our_run, Bootstrap(10))
    metrics = measure(run.at(run.loads[0]), Bootstrap(10))  # one request at a time
    assert len(metrics.methods) == 1 + len(engine.methods)
    for method in metrics.methods:
        kind = method.partition(":")[0]
        if kind in CHAINS.keys() - of_its_own:
            wanted = pytest.approx(mat(our_metrics, CHAINS[kind]), rel=0.03)
            assert mat(metrics, method) == wanted, method
    command = [sys.executable, "-m", "specbench", "audit", str(tmp_path / "run")]
    assert subprocess.run(command, check=False).returncode == 0
