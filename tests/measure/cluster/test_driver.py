"""The driver of a cluster, with workers in this process."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.data.prompts import Prompt
from specbench.errors import SpecbenchError
from specbench.log.run import Run
from specbench.log.store import read_header, read_run
from specbench.measure.base import Sample
from specbench.measure.cluster.backend import MOST_ATTEMPTS, make_cluster_setup
from specbench.measure.cluster.ray_cluster import RayCluster
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.types import Record
from tests.support.backend import answering, fake_plan
from tests.support.cluster import FakeRay
from tests.support.watching import Watcher

METHODS = {"vanilla": answering(1), "pld": answering(2), "sps": answering(3)}
PROMPTS = {
    "chat": [Prompt(f"chat/{n}", "", ("hello", "again")) for n in range(5)],
    "maths": [Prompt(f"maths/{n}", "", ("1+1",)) for n in range(4)],
}
SPEC = RunSpec(methods=tuple(METHODS), repeats=2, temperatures=(0.0, 1.0))


Use = Callable[..., FakeRay]


def run(path: Path, spec: RunSpec = SPEC) -> tuple[Run, Watcher]:
    """A run on the Ray that a test uses."""
    plan, watcher = fake_plan(METHODS, PROMPTS, spec), Watcher()
    with RayCluster("auto") as cluster:
        setup = make_cluster_setup(cluster, spec, is_offline=True)
        return run_plan(replace(plan, setup=setup), path, watcher, given=()), watcher


def outcome(record: Record) -> tuple[Any, ...]:
    return record.key, record.token_ids, record.accept_lengths, record.place, record.seed


def at_sample(name: str, most: int) -> Any:
    """Dies at the first `most` tries of a sample, in the first repeat at temperature 0."""
    count = 0

    def dies(one: Sample) -> bool:
        nonlocal count
        if (one.prompt.sample_id, one.repeat, one.temperature) != (name, 0, 0.0):
            return False
        count += 1
        return count <= most

    return dies


def test_a_cluster_gives_the_records_of_one_process(tmp_path: Path, ray: Use) -> None:
    ray()
    stored, watcher = run(tmp_path / "many")
    alone = run_plan(fake_plan(METHODS, PROMPTS, SPEC), tmp_path / "one", Watcher(), given=())
    assert {*map(outcome, stored.records)} == {*map(outcome, alone.records)}
    assert len(stored.records) == len(alone.records) == len(watcher.records)
    assert stored.header.status == "complete"


def test_all_methods_of_a_sample_run_on_one_worker_that_the_header_describes(
    tmp_path: Path, ray: Use
) -> None:
    ray()
    stored, _ = run(tmp_path)
    workers = defaultdict(set)
    for record in stored.records:
        key = record.key
        workers[key.temperature, key.sample_id, key.repeat].add(record.worker)
    assert all(len(names) == 1 for names in workers.values())
    used = {name for names in workers.values() for name in names}
    assert used == {*stored.header.workers} == {"worker-1", "worker-2", "worker-3"}
    assert {one.node for one in stored.header.workers.values()} == {"node-0", "node-1", "node-2"}
    assert stored.header.machine.device.startswith("3 workers on Example CPU 9000")


def test_a_resumed_run_hands_out_only_samples_with_missing_records(
    tmp_path: Path, ray: Use
) -> None:
    ray()
    run(tmp_path)
    samples = tmp_path / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:-2]))
    again = ray()
    stored, _ = run(tmp_path)
    ((_, sample, known),) = again.given
    assert {*stored.header.workers} >= {"worker-4", stored.records[-1].worker}
    assert len(known) == len(METHODS) * len(sample.prompt.turns) - 2
    assert {r.key for r in stored.records} == {*fake_plan(METHODS, PROMPTS, SPEC).keys}


def test_a_lost_workers_sample_is_repeated_elsewhere_and_nothing_is_doubled(
    tmp_path: Path, ray: Use
) -> None:
    ray(dies=at_sample("chat/2", 1))
    stored, watcher = run(tmp_path)
    counts = Counter(record.key for record in stored.records)
    assert set(counts) == set(fake_plan(METHODS, PROMPTS, SPEC).keys)
    assert set(counts.values()) == {1}
    (text,) = [text for text in watcher.messages if "lost" in text]
    assert text.endswith(" is lost: the node was killed. Another worker repeats chat/2.")


def test_a_sample_that_kills_every_worker_fails_and_the_others_are_measured(
    tmp_path: Path, ray: Use
) -> None:
    ray(dies=at_sample("chat/2", 99), has_restarts=True)
    stored, _ = run(tmp_path)
    bad = [record for record in stored.records if not record.is_ok]
    assert len(bad) == 2 * len(METHODS)  # turns
    assert {record.key.sample_id for record in bad} == {"chat/2"}
    assert {record.error for record in bad} == {
        f"{MOST_ATTEMPTS} workers were lost at it: the node was killed."
    }
    assert len(stored.records) == len({*fake_plan(METHODS, PROMPTS, SPEC).keys})


def test_without_a_worker_the_run_fails_and_can_be_resumed(tmp_path: Path, ray: Use) -> None:
    ray(num_workers=1, dies=at_sample("chat/2", 1))
    with pytest.raises(SpecbenchError, match="No worker is left") as error:
        run(tmp_path)
    assert "--resume" in error.value.hint
    assert read_header(tmp_path).status == "failed"
    kept = read_run(tmp_path).records
    ray(num_workers=1)
    stored, _ = run(tmp_path)
    assert stored.records[: len(kept)] == kept and stored.header.status == "complete"
    assert {record.worker for record in stored.records} == {"worker-1", "worker-2"}


def test_a_worker_that_comes_back_is_described_before_its_records(tmp_path: Path, ray: Use) -> None:
    def dies(sample: Sample) -> bool:
        names = {*read_header(tmp_path).workers}
        assert {record.worker for record in read_run(tmp_path).records} <= names
        return len(names) == 1 and sample.prompt.sample_id == "chat/1"

    ray(num_workers=1, dies=dies, has_restarts=True)
    stored, watcher = run(tmp_path)
    assert "worker-2 has joined." in watcher.messages
    assert {record.worker for record in stored.records} == {"worker-1", "worker-2"}
    assert {*stored.header.workers} == {"worker-1", "worker-2"}


def test_passes_end_before_the_next_ones_begin_if_their_number_is_open(
    tmp_path: Path, ray: Use
) -> None:
    ray()
    stored, _ = run(tmp_path, RunSpec(methods=tuple(METHODS), repeats=3, until_ci=0.001))
    repeats = [record.key.repeat for record in stored.records]
    assert repeats == sorted(repeats)
