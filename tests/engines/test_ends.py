"""Real engines that are killed or hang: samples fail with reasons, and no process is left."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from specbench.log.store import read_run
from specbench.measure.server.keeper import WAIT_S
from specbench.measure.server.process import END_S
from specbench.measure.server.started_servers import START_S
from tests.engines.installed import TASKS, installed
from tests.support.ends import are_gone, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ENGINES = pytest.mark.parametrize("name", ["llamacpp", "vllm"])
Running = tuple[subprocess.Popen[bytes], list[psutil.Process]]


@contextmanager
def running(name: str, folder: Path, *more: str) -> Iterator[Running]:
    """The process of a run that has a sample, and the processes of its engine.

    The latter include neither the run's own process nor the keeper.
    """
    engine = installed(name)
    words = [
        "run", "--engine", engine.name,
        *(word for part in engine.command for word in ("--engine-command", part)),
        "--model", engine.model, "--method", "ngram", "--dataset", TASKS, "--device", "cpu",
        "--dtype", "float32", "--prompts", "bundled", "--output", str(folder), "--quiet", *more,
    ]  # fmt: skip
    samples = folder / "samples.jsonl"
    process = subprocess.Popen([sys.executable, "-m", "specbench", *words])
    try:
        assert wait_until(lambda: samples.exists() and samples.stat().st_size > 0, START_S)
        keepers = psutil.Process(process.pid).children()
        yield process, [child for keeper in keepers for child in keeper.children(recursive=True)]
    finally:
        process.kill()
        process.wait()


def all_gone(processes: list[psutil.Process]) -> bool:
    return are_gone(*(process.pid for process in processes))


@ENGINES
def test_a_kill_of_a_run_leaves_no_process_of_the_engine(name: str, tmp_path: Path) -> None:
    with running(name, tmp_path / "run") as (run, engine):
        assert engine
        run.kill()
        run.wait()
        assert wait_until(lambda: all_gone(engine), END_S)


@ENGINES
def test_a_killed_engine_fails_only_its_samples(name: str, tmp_path: Path) -> None:
    with running(name, tmp_path / "run", "--limit", "4") as (run, engine):
        for process in engine:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        assert run.wait(2 * START_S) == 1
        assert all_gone(engine)
    stored = read_run(tmp_path / "run")
    failed = [record for record in stored.records if not record.is_ok]
    assert stored.header.status == "complete"
    assert failed and all("ended with status" in (record.error or "") for record in failed)
    assert {record.key.method for record in failed} == {"vanilla"}
    assert any(record.is_ok for record in stored.records if record.key.method == "ngram")


@ENGINES
def test_an_engine_that_hangs_is_ended_at_the_time_limit(name: str, tmp_path: Path) -> None:
    more = ("--limit", "4", "--no-baseline", "--request-timeout", "3")
    with running(name, tmp_path / "run", *more) as (run, engine):
        for process in engine:
            process.suspend()
        assert run.wait(START_S) == 1
        assert wait_until(lambda: all_gone(engine), WAIT_S)
    failed = [record for record in read_run(tmp_path / "run").records if not record.is_ok]
    assert failed and all(record.error for record in failed)
