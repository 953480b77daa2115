"""The driver of a cluster, with workers in this process."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.data.prompts import Prompt
from specbench.errors import SpecbenchError
from specbench.log.run import Run
from specbench.log.store import read_header, read_run
from specbench.measure.base import Plan
from specbench.measure.cluster.backend import make_cluster_setup
from specbench.measure.cluster.cluster import Job
from specbench.measure.cluster.jobs import MOST_ATTEMPTS
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.types import Record
from tests.support.backend import answering, fake_plan
from tests.support.cluster import FakeCluster
from tests.support.watching import Watcher

METHODS = {"vanilla": answering(1), "pld": answering(2), "sps": answering(3)}
PROMPTS = {
    "chat": [Prompt(f"chat/{n}", "", ("hello", "again")) for n in range(5)],
    "maths": [Prompt(f"maths/{n}", "", ("1+1",)) for n in range(4)],
}
SPEC = RunSpec(methods=tuple(METHODS), repeats=2, temperatures=(0.0, 1.0))


def plan_on(cluster: FakeCluster, spec: RunSpec = SPEC) -> Plan:
    plan = fake_plan(METHODS, PROMPTS, spec)
    return replace(plan, setup=make_cluster_setup(cluster, spec, is_offline=True))


def run(path: Path, cluster: FakeCluster, spec: RunSpec = SPEC) -> tuple[Run, Watcher]:
    watcher = Watcher()
    return run_plan(plan_on(cluster, spec), path, watcher, given=()), watcher


def outcome(record: Record) -> tuple[Any, ...]:
    return record.key, record.token_ids, record.accept_lengths, record.place, record.seed


def at_sample(name: str, most: int) -> Any:
    """Dies at the first `most` tries of a sample, in the first repeat at temperature 0."""
    count = 0

    def dies(worker: str, job: Job) -> bool:
        nonlocal count
        one = job.sample
        if (one.prompt.sample_id, one.repeat, one.temperature) != (name, 0, 0.0):
            return False
        count += 1
        return count <= most

    return dies


def test_a_cluster_gives_the_records_of_one_process(tmp_path: Path) -> None:
    stored, watcher = run(tmp_path / "many", FakeCluster(METHODS))
    alone = run_plan(fake_plan(METHODS, PROMPTS, SPEC), tmp_path / "one", Watcher(), given=())
    assert {*map(outcome, stored.records)} == {*map(outcome, alone.records)}
    assert len(stored.records) == len(alone.records) == len(watcher.records)
    assert stored.header.status == "complete"


def test_all_methods_of_a_sample_run_on_one_worker_that_the_header_describes(
    tmp_path: Path,
) -> None:
    stored, _ = run(tmp_path, FakeCluster(METHODS))
    workers = defaultdict(set)
    for record in stored.records:
        key = record.key
        workers[key.temperature, key.sample_id, key.repeat].add(record.worker)
    assert all(len(names) == 1 for names in workers.values())
    used = {name for names in workers.values() for name in names}
    assert used == {*stored.header.workers} == {"worker-1", "worker-2", "worker-3"}
    assert {one.node for one in stored.header.workers.values()} == {"node-0", "node-1", "node-2"}
    assert stored.header.machine.device.startswith("3 workers on Example CPU 9000")


def test_a_worker_gets_one_job_at_a_time_with_what_is_known_of_it(tmp_path: Path) -> None:
    """A resumed run hands out only samples with missing records."""
    cluster = FakeCluster(METHODS)
    run(tmp_path, cluster)
    samples = tmp_path / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:-2]))
    again = FakeCluster(METHODS)
    stored, _ = run(tmp_path, again)
    ((worker, job),) = again.given
    assert worker.startswith("worker-") and {*stored.header.workers} >= {"worker-4", worker}
    assert len(job.known) == len(METHODS) * len(job.sample.prompt.turns) - 2
    assert {r.key for r in stored.records} == {*plan_on(FakeCluster(METHODS)).keys}


def test_a_lost_workers_sample_is_repeated_elsewhere_and_nothing_is_doubled(
    tmp_path: Path,
) -> None:
    stored, watcher = run(tmp_path, FakeCluster(METHODS, dies=at_sample("chat/2", 1)))
    counts = Counter(record.key for record in stored.records)
    assert set(counts) == set(plan_on(FakeCluster(METHODS)).keys)
    assert set(counts.values()) == {1}
    (text,) = [text for text in watcher.messages if "lost" in text]
    assert text.endswith(" is lost: the node was killed. Another worker repeats chat/2.")


def test_a_sample_that_kills_every_worker_fails_and_the_others_are_measured(
    tmp_path: Path,
) -> None:
    cluster = FakeCluster(METHODS, dies=at_sample("chat/2", 99), has_restarts=True)
    stored, _ = run(tmp_path, cluster)
    bad = [record for record in stored.records if not record.is_ok]
    assert len(bad) == 2 * len(METHODS)  # turns
    assert {record.key.sample_id for record in bad} == {"chat/2"}
    assert {record.error for record in bad} == {
        f"{MOST_ATTEMPTS} workers were lost at it: the node was killed."
    }
    assert len(stored.records) == len({*plan_on(FakeCluster(METHODS)).keys})


def test_without_a_worker_the_run_fails_and_can_be_resumed(tmp_path: Path) -> None:
    cluster = FakeCluster(METHODS, num_workers=1, dies=at_sample("chat/2", 1))
    with pytest.raises(SpecbenchError, match="No worker is left") as error:
        run(tmp_path, cluster)
    assert "--resume" in error.value.hint
    assert read_header(tmp_path).status == "failed"
    kept = read_run(tmp_path).records
    stored, _ = run(tmp_path, FakeCluster(METHODS, num_workers=1))
    assert stored.records[: len(kept)] == kept and stored.header.status == "complete"
    assert {record.worker for record in stored.records} == {"worker-1", "worker-2"}


def test_a_worker_that_comes_back_is_described_before_it_works(tmp_path: Path) -> None:
    def dies(worker: str, job: Job) -> bool:
        if worker == "worker-2":
            assert "worker-2" in read_header(tmp_path).workers
        return worker == "worker-1"

    cluster = FakeCluster(METHODS, num_workers=1, dies=dies, has_restarts=True)
    stored, watcher = run(tmp_path, cluster)
    assert "worker-2 has joined." in watcher.messages
    assert {record.worker for record in stored.records} == {"worker-2"}
    assert {*stored.header.workers} == {"worker-1", "worker-2"}


def test_passes_end_before_the_next_ones_begin_if_their_number_is_open(tmp_path: Path) -> None:
    spec = RunSpec(methods=tuple(METHODS), repeats=3, until_ci=0.001)
    stored, _ = run(tmp_path, FakeCluster(METHODS), spec)
    repeats = [record.key.repeat for record in stored.records]
    assert repeats == sorted(repeats)
