"""Real engines that are killed or hang: failed samples with reasons, and no process left behind."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from specbench.log.store import read_run
from specbench.measure.server.keeper import WAIT_S
from specbench.measure.server.servers import END_S, START_S
from tests.engines.installed import TASKS, Installed, installed
from tests.support.ends import are_gone, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ENGINES = pytest.mark.parametrize("name", ["llamacpp", "vllm"])


class Running:
    """A run of an engine in a process of its own."""

    def __init__(self, engine: Installed, folder: Path, *more: str) -> None:
        self.folder = folder
        words = [
            "run", "--engine", engine.name,
            *(word for one in engine.command for word in ("--engine-command", one)),
            "--model", engine.model, "--method", "ngram", "--dataset", TASKS, "--device", "cpu",
            "--dtype", "float32", "--prompts", "bundled", "--output", str(folder), "--quiet", *more,
        ]  # fmt: skip
        self.process = subprocess.Popen([sys.executable, "-m", "specbench", *words])

    @property
    def engine(self) -> list[psutil.Process]:
        """The engine's processes, without ours and the keeper."""
        keepers = psutil.Process(self.process.pid).children()
        return [one for keeper in keepers for one in keeper.children(recursive=True)]

    @property
    def num_samples(self) -> int:
        samples = self.folder / "samples.jsonl"
        return len(samples.read_text().splitlines()) if samples.exists() else 0

    def wait_for_samples(self, number: int) -> list[psutil.Process]:
        """The engine's processes, once the run has `number` samples."""
        assert wait_until(lambda: self.num_samples >= number, START_S)
        return self.engine


@contextmanager
def running(name: str, folder: Path, *more: str) -> Iterator[Running]:
    run = Running(installed(name), folder / "run", *more)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


@ENGINES
def test_a_kill_of_a_run_leaves_no_process_of_the_engine(name: str, tmp_path: Path) -> None:
    with running(name, tmp_path) as run:
        processes = run.wait_for_samples(1)
        assert processes
        run.process.kill()
        run.process.wait()
        assert wait_until(lambda: are_gone(*(one.pid for one in processes)), END_S)


@ENGINES
def test_an_engine_that_is_killed_fails_its_samples_and_the_run_goes_on(
    name: str, tmp_path: Path
) -> None:
    with running(name, tmp_path, "--limit", "4") as run:
        processes = run.wait_for_samples(1)
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        assert run.process.wait(2 * START_S) == 1
        assert are_gone(*(one.pid for one in processes))
    stored = read_run(run.folder)
    failed = [one for one in stored.records if not one.is_ok]
    assert stored.header.status == "complete"
    assert failed and all("ended with status" in (one.error or "") for one in failed)
    assert {one.key.method for one in failed} == {"vanilla"}
    assert any(one.is_ok for one in stored.records if one.key.method == "ngram")


@ENGINES
def test_an_engine_that_hangs_is_left_at_the_time_limit_and_ended(
    name: str, tmp_path: Path
) -> None:
    with running(name, tmp_path, "--limit", "4", "--no-baseline", "--request-timeout", "3") as run:
        processes = run.wait_for_samples(1)
        for one in processes:
            one.suspend()
        assert run.process.wait(START_S) == 1
        assert wait_until(lambda: are_gone(*(one.pid for one in processes)), WAIT_S)
    failed = [one for one in read_run(run.folder).records if not one.is_ok]
    assert failed and all(one.error for one in failed)
