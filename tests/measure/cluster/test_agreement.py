"""Workers of a cluster must agree before a run starts, and Ray must have what they need."""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from specbench.errors import CheckpointError, TooLarge, UserError
from specbench.log.machine import Environment
from specbench.measure.cluster.backend import ClusterSetup, make_cluster_setup
from specbench.measure.cluster.ray_cluster import Demand, RayCluster, demand_of
from specbench.measure.cluster.worker import RemoteSetup
from specbench.measure.spec import RunSpec
from tests.measure.cluster.test_driver import run
from tests.support.cluster import FakeRay

Change = Callable[[RemoteSetup], RemoteSetup]


def setup(spec: RunSpec | None = None) -> ClusterSetup:
    with RayCluster("auto") as cluster:
        return make_cluster_setup(cluster, spec or RunSpec(), is_offline=True)


def with_environment(**values: Any) -> Change:
    def change(report: RemoteSetup) -> RemoteSetup:
        environment = structs.replace(environment_of(report), **values)
        return replace(report, about=replace(report.about, environment=environment))

    return change


def environment_of(report: RemoteSetup) -> Environment:
    assert report.about.environment is not None
    return report.about.environment


def with_torch(version: str) -> Change:
    return lambda report: with_environment(
        torch=structs.replace(environment_of(report).torch, version=version)
    )(report)


def with_methods(**values: Any) -> Change:
    """A report in which pld has these values."""

    def change(report: RemoteSetup) -> RemoteSetup:
        methods = {"pld": structs.replace(report.about.methods["pld"], **values)}
        about = replace(report.about, methods={**report.about.methods, **methods})
        return replace(report, about=about)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            with_environment(transformers="5.1.0"),
            'has other versions: transformers "5.1.0" (here "5',
        ),
        (with_environment(specbench="9.0"), 'other versions: specbench "9.0" (here "0.1.0").'),
        (with_environment(git=None), 'git.commit "none" (here "0123456789ab'),
    ],
)
def test_a_worker_that_differs_is_named_with_what_differs(
    change: Change, message: str, ray: Callable[..., FakeRay]
) -> None:
    ray(changed={1: change})
    with pytest.raises(UserError) as error:
        setup()
    assert message in error.value.message and error.value.hint
    assert "10.0.0.1" in error.value.message


def test_a_worker_with_other_files_is_named(tmp_path: Path, ray: Callable[..., FakeRay]) -> None:
    ray(changed=dict.fromkeys(range(3), with_methods(options={"num_tokens": 3})))
    with pytest.raises(CheckpointError, match=r"pld has other files on 10\.0\.0\.\d than on"):
        run(tmp_path)


def test_builds_of_torch_for_gpus_and_cpus_count_as_one_version(
    ray: Callable[..., FakeRay],
) -> None:
    ray(changed=dict.fromkeys(range(3), with_torch("2.13.0+cu128")))
    assert environment_of(setup()).torch.version == "2.13.0+cu128"


def test_different_cards_are_a_warning_of_the_run(
    tmp_path: Path, ray: Callable[..., FakeRay]
) -> None:
    def slow(report: RemoteSetup) -> RemoteSetup:
        cpu = structs.replace(environment_of(report).cpu, model="Slow CPU")
        return with_environment(cpu=cpu)(report)

    ray(changed={2: slow})
    (text,) = run(tmp_path)[0].header.warnings
    assert text.startswith("The workers differ: Example CPU 9000") and "Slow CPU" in text


def test_what_a_cluster_cannot_run_is_refused(ray: Callable[..., FakeRay]) -> None:
    ray(changed=dict.fromkeys(range(3), with_methods(scope="run")))
    with pytest.raises(UserError, match="pld remembers earlier prompts"):
        setup()
    with pytest.raises(UserError, match="not for servers"):
        setup(RunSpec(backend="server"))


def test_a_worker_that_refuses_the_model_ends_the_run_with_its_reason(
    tmp_path: Path, ray: Callable[..., FakeRay]
) -> None:
    ray(refusals={1: CheckpointError("Model fake does not fit.", "Use a smaller one.")})
    with pytest.raises(CheckpointError, match="does not fit"):
        run(tmp_path)


NODES = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}, {"CPU": 4.0, "GPU": 1.0}]


def test_a_worker_has_a_gpu_or_the_cores_of_the_smallest_node() -> None:
    assert demand_of("auto", NODES, "auto") == Demand("GPU", 1, 3)
    assert demand_of("cuda", NODES, "auto") == Demand("GPU", 1, 3)
    assert demand_of("cpu", NODES, "auto") == Demand("CPU", 4, 4)
    assert demand_of("auto", NODES[1:2], "auto") == Demand("CPU", 4, 1)


@pytest.mark.parametrize(
    ("device", "nodes", "message"),
    [
        ("cuda", NODES[1:2], "A worker needs 1 GPU, and the cluster at 10.0.0.9:6379 has 0."),
        ("cuda:1", NODES, "--device cuda:1 names GPUs"),
        ("cpu", [{"GPU": 1.0}], "A worker needs 1 CPU, and the cluster at 10.0.0.9:6379 has 0."),
    ],
)
def test_a_cluster_that_cannot_hold_a_worker_is_refused(
    device: str, nodes: list[dict[str, float]], message: str
) -> None:
    with pytest.raises(UserError) as error:
        demand_of(device, nodes, "10.0.0.9:6379")
    assert message in error.value.message and error.value.hint


def test_a_model_larger_than_a_card_gets_workers_with_more_of_them() -> None:
    error = pickle.loads(pickle.dumps(TooLarge("No.", num_gpus_needed=2))).at("10.0.0.2")
    nodes = [{"GPU": 5.0}, {"CPU": 8.0}, {"GPU": 2.0}, {"GPU": 1.0}]
    assert demand_of("auto", nodes, "auto", error) == Demand("GPU", 2, 3)


def test_a_model_larger_than_a_machine_is_told_with_the_gpus_it_needs() -> None:
    error = TooLarge("It does not fit: 3 such GPUs are needed.", "Other.", num_gpus_needed=3)
    with pytest.raises(TooLarge) as told:
        demand_of("auto", [{"GPU": 2.0}, {"GPU": 2.0}], "auto", error.at("10.0.0.2"))
    assert told.value.message == (
        "On 10.0.0.2: It does not fit: 3 such GPUs are needed. "
        "The largest machine of the cluster has 2."
    )
    assert told.value.hint == "Other."
    with pytest.raises(TooLarge, match="for a CPU"):
        demand_of("cpu", [{"CPU": 4.0}], "auto", TooLarge("It is too large for a CPU."))


def test_a_cluster_that_cannot_be_reached_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", object())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UserError, match=f"cluster at 127.0.0.1:{port} cannot be reached") as error:
        RayCluster(f"127.0.0.1:{port}").__enter__()
    assert "--ray local" in error.value.hint


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="Ray, which is not installed") as error:
        RayCluster("local").__enter__()
    assert "ray[default]>=2.40" in error.value.hint
