"""The driver of a cluster. Workers run in this process, and must agree before a run starts."""

import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from specbench.data.prompts import Prompt
from specbench.errors import CheckpointError, SpecbenchError, UserError
from specbench.log.run import Run
from specbench.log.store import read_header, read_run
from specbench.measure.base import Sample
from specbench.measure.cluster.connection import connected
from specbench.measure.cluster.driver import MOST_ATTEMPTS
from specbench.measure.cluster.messages import WorkerReport
from specbench.measure.cluster.setup import ClusterSetup, make_cluster_setup
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.types import Record
from tests.support.backend import answering, fake_plan
from tests.support.cluster import ActorUnplaced, FakeRay, SystemBroke, use_ray
from tests.support.headers import make_header
from tests.support.refusals import error_with
from tests.support.watching import Watcher

METHODS = {"vanilla": answering(1), "pld": answering(2), "sps": answering(3)}
PROMPTS = {
    "chat": [Prompt(f"chat/{n}", "", ("hello", "again")) for n in range(5)],
    "maths": [Prompt(f"maths/{n}", "", ("1+1",)) for n in range(4)],
}
SPEC = RunSpec(methods=tuple(METHODS), repeats=2, temperatures=(0.0, 1.0))
MACHINE = make_header().environment
Use = Callable[..., FakeRay]
Nodes = Sequence[dict[str, float]]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRay]:
    """A function that makes tests use a fake Ray with these options."""

    def use(**options: Any) -> FakeRay:
        return use_ray(monkeypatch, FakeRay(METHODS, **options))

    return use


def run(path: Path, spec: RunSpec = SPEC) -> tuple[Run, Watcher]:
    """A run on the fake Ray that the test uses."""
    plan, watcher = fake_plan(METHODS, PROMPTS, spec), Watcher()
    with connected("auto") as ray:
        setup = make_cluster_setup(ray, spec, is_offline=True)
        return run_plan(replace(plan, setup=setup), path, watcher, given=()), watcher


def outcome(record: Record) -> tuple[Any, ...]:
    return record.key, record.token_ids, record.accept_lengths, record.place, record.seed


def at_sample(name: str, most: int) -> Any:
    """Die at the first `most` tries of this sample, in the first repeat at temperature 0."""
    tries = iter(range(most))

    def dies(sample: Sample) -> bool:
        is_it = (sample.prompt.sample_id, sample.repeat, sample.temperature) == (name, 0, 0.0)
        return is_it and next(tries, None) is not None

    return dies


def test_a_cluster_gives_the_records_of_one_process(tmp_path: Path, ray: Use) -> None:
    ray()
    stored, watcher = run(tmp_path / "many")
    alone = run_plan(fake_plan(METHODS, PROMPTS, SPEC), tmp_path / "one", Watcher(), given=())
    assert {*map(outcome, stored.records)} == {*map(outcome, alone.records)}
    assert len(stored.records) == len(alone.records) == len(watcher.records)
    assert stored.header.status == "complete"
    repeats = [record.key.repeat for record in stored.records]
    assert repeats == sorted(repeats)
    samples = {(record.key.request._replace(turn=0), record.worker) for record in stored.records}
    assert len(samples) == len({sample for sample, _ in samples}), "each sample goes to one worker"
    assert {worker for _, worker in samples} == {*stored.header.workers}
    assert {*stored.header.workers} == {"worker-1", "worker-2", "worker-3"}
    nodes = {worker.node for worker in stored.header.workers.values()}
    assert nodes == {"node-0", "node-1", "node-2"}
    assert stored.header.device_phrase.startswith("3 workers on Example CPU 9000")


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
    ((sample, stored_of_sample),) = again.given
    assert {*stored.header.workers} >= {"worker-4", stored.records[-1].worker}
    assert len(stored_of_sample) == len(METHODS) * len(sample.prompt.turns) - 2
    assert {r.key for r in stored.records} == {*fake_plan(METHODS, PROMPTS, SPEC).keys}


def test_a_lost_workers_sample_is_repeated_elsewhere(tmp_path: Path, ray: Use) -> None:
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
    stored, watcher = run(tmp_path)
    losses = [text for text in watcher.messages if "is lost" in text]
    assert [text.split(" killed. ")[1] for text in losses] == [
        *["Another worker repeats chat/2."] * (MOST_ATTEMPTS - 1),
        "No other worker tries chat/2.",
    ]
    bad = [record for record in stored.records if not record.is_ok]
    assert len(bad) == 2 * len(METHODS)  # turns
    assert {record.key.sample_id for record in bad} == {"chat/2"}
    assert {record.error for record in bad} == {
        f"{MOST_ATTEMPTS} workers were lost while they completed it: the node was killed."
    }
    assert len(stored.records) == len({*fake_plan(METHODS, PROMPTS, SPEC).keys})


def test_without_a_worker_the_run_fails_and_can_be_resumed(tmp_path: Path, ray: Use) -> None:
    ray(num_workers=1, dies=at_sample("chat/2", 1))
    with error_with(SpecbenchError, "No worker is left", hint="--resume"):
        run(tmp_path)
    assert read_header(tmp_path).status == "failed"
    kept = read_run(tmp_path).records
    ray(num_workers=1)
    stored, _ = run(tmp_path)
    assert stored.records[: len(kept)] == kept and stored.header.status == "complete"
    assert {record.worker for record in stored.records} == {"worker-1", "worker-2"}


def test_a_worker_whose_machine_is_gone_leaves_its_sample_to_another(
    tmp_path: Path, ray: Use
) -> None:
    ray(failures={"chat/2": ActorUnplaced})
    stored, watcher = run(tmp_path)
    assert {record.key for record in stored.records} == {*fake_plan(METHODS, PROMPTS, SPEC).keys}
    assert all(record.is_ok for record in stored.records)
    assert any("is lost: the raylet has died. Another" in text for text in watcher.messages)


@pytest.mark.parametrize(
    ("failure", "message"),
    [(ActorUnplaced, "No worker is left"), (SystemBroke, "The Ray cluster failed: the raylet has")],
)
def test_a_lost_cluster_keeps_its_records(
    failure: type[Exception], message: str, tmp_path: Path, ray: Use
) -> None:
    ray(num_workers=1, failures={"chat/2": failure})
    with error_with(SpecbenchError, match=message, hint="--resume"):
        run(tmp_path)
    assert read_run(tmp_path).records and read_header(tmp_path).status == "failed"


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


Change = Callable[[WorkerReport], WorkerReport]


def setup(spec: RunSpec | None = None) -> ClusterSetup:
    with connected("auto") as ray:
        return make_cluster_setup(ray, spec or RunSpec(), is_offline=True)


def reporting(pld: Mapping[str, Any] | None = None, **environment: Any) -> Change:
    """A change to a worker's report: new values in PLD's header and in the environment."""

    def change(report: WorkerReport) -> WorkerReport:
        about = report.about
        methods = {**about.methods, "pld": structs.replace(about.methods["pld"], **(pld or {}))}
        machine = structs.replace(about.environment or MACHINE, **environment)
        return replace(report, about=structs.replace(about, methods=methods, environment=machine))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            reporting(transformers="5.1.0"),
            'has other versions or files: transformers "5.1.0" (elsewhere "5',
        ),
        (reporting(git=None), 'git.commit null (elsewhere "0123456789ab'),
        (reporting({"title": "Other"}), 'files: methods.pld.title "Other" (elsewhere "pld").'),
    ],
)
def test_a_different_worker_is_named_with_its_differences(
    change: Change, message: str, ray: Use
) -> None:
    ray(changed={1: change})
    with pytest.raises(UserError) as error:
        setup()
    assert message in error.value.message and error.value.hint
    assert "10.0.0.1" in error.value.message


def test_a_worker_whose_files_change_is_refused_when_it_loads_them(
    tmp_path: Path, ray: Use
) -> None:
    ray(changed=dict.fromkeys(range(3), reporting({"is_lossless": False})))
    with pytest.raises(UserError, match=r"10\.0\.0\.\d has other .*is_lossless true \(elsewhere"):
        run(tmp_path)


def test_builds_of_torch_for_gpus_and_cpus_count_as_one_version(ray: Use) -> None:
    torch = structs.replace(MACHINE.torch, version="2.13.0+cu128")
    ray(changed=dict.fromkeys(range(3), reporting(torch=torch)))
    machine = setup().about.environment
    assert machine and machine.torch == torch


def test_different_cards_give_a_warning(tmp_path: Path, ray: Use) -> None:
    cpu = structs.replace(MACHINE.cpu, model="Slow CPU")
    ray(changed={2: reporting(cpu=cpu)})
    (text,) = run(tmp_path)[0].header.warnings
    assert text.startswith("The workers differ: Example CPU 9000") and "Slow CPU" in text


def test_runs_that_no_cluster_supports_are_refused(ray: Use) -> None:
    ray(changed=dict.fromkeys(range(3), reporting({"scope": "run"})))
    with pytest.raises(UserError, match="pld remembers earlier prompts"):
        setup()
    with pytest.raises(UserError, match="not for servers"):
        setup(RunSpec(backend="server"))


def test_a_worker_that_refuses_the_model_ends_the_run_with_its_reason(
    tmp_path: Path, ray: Use
) -> None:
    ray(refusals={1: CheckpointError("Model fake does not fit.", "Use a smaller one.")})
    with pytest.raises(CheckpointError, match="does not fit"):
        run(tmp_path)


NODES = ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}, {"CPU": 4.0, "GPU": 1.0})


def on(node: int, num_cpus: int) -> dict[str, int]:
    return {"num_cpus": num_cpus, "scheduling_strategy": node}


@pytest.mark.parametrize(
    ("device", "nodes", "expected"),
    [
        ("auto", NODES, [{"num_gpus": 1}] * 3),
        ("cuda", NODES, [{"num_gpus": 1}] * 3),
        ("cpu", NODES, [on(0, 8), on(1, 4), on(2, 4)]),
        ("auto", NODES[1:2], [on(0, 4)]),
        ("cuda:0-1", ({"GPU": 5}, {"CPU": 8}, {"GPU": 2}, {"GPU": 1}), [{"num_gpus": 2}] * 3),
        ("cuda", NODES[1:2], "needs 1 GPU, and the largest machine of the cluster has 0."),
        ("cpu", ({"GPU": 1},), "needs 1 CPU, and the largest machine of the cluster has 0."),
        (
            "cuda:0-2",
            ({"GPU": 2},) * 2,
            "needs 3 GPUs on one machine, and the largest machine of the cluster has 2.",
        ),
    ],
)
def test_a_worker_has_the_named_gpus_or_all_cores(
    device: str, nodes: Nodes, expected: list[dict[str, int]] | str, ray: Use
) -> None:
    used = ray(resources=nodes, num_workers=len(expected))
    if isinstance(expected, list):
        setup(RunSpec(device=device))
        assert used.demands == expected
        return
    with pytest.raises(UserError) as error:
        setup(RunSpec(device=device))
    assert error.value.message == f"A worker {expected}" and error.value.hint


def test_a_cluster_that_cannot_be_reached_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", object())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with error_with(
        UserError, match=f"cluster at 127.0.0.1:{port} cannot be reached", hint="--ray local"
    ):
        connected(f"127.0.0.1:{port}").__enter__()


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with error_with(UserError, "Ray, which is not installed", hint="ray[default]>=2.40"):
        connected("local").__enter__()
