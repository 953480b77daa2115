"""Workers of a cluster must agree before a run starts, and Ray must have what they need."""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from specbench.errors import CheckpointError, SpecbenchError, TooLarge, UserError
from specbench.measure.cluster.backend import make_cluster_setup
from specbench.measure.cluster.cluster import Opening, SetupReport
from specbench.measure.cluster.demand import Demand, demand_of, with_more_gpus
from specbench.measure.cluster.ray_cluster import RayCluster
from specbench.measure.spec import RunSpec
from tests.measure.cluster.test_driver import METHODS, plan_on, run
from tests.support.cluster import FakeCluster

Change = Callable[[SetupReport], SetupReport]


def with_environment(**values: Any) -> Change:
    return lambda report: replace(report, environment=structs.replace(report.environment, **values))


def with_file(report: SetupReport) -> SetupReport:
    model = structs.replace(report.about.model, revision="another")
    return replace(report, about=replace(report.about, model=model))


def with_head(report: SetupReport) -> SetupReport:
    head = structs.replace(report.about.methods["pld"], options={"num_tokens": 3})
    methods = {**report.about.methods, "pld": head}
    return replace(report, about=replace(report.about, methods=methods))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_environment(transformers="5.1.0"), "has other versions: transformers 5.1.0 (here 5"),
        (with_environment(specbench="9.0"), "has other versions: specbench 9.0 (here 0.1.0)."),
        (with_environment(git=None), "its commit not at all (here 0123456789ab)"),
        (with_file, "Model fake has other files on 10.0.0."),
        (with_head, "pld has other files on 10.0.0."),
    ],
)
def test_a_worker_that_differs_is_named_with_what_differs(change: Change, message: str) -> None:
    cluster = FakeCluster(METHODS, changed={1: change})
    with pytest.raises(UserError) as error:
        make_cluster_setup(cluster, RunSpec(), is_offline=True)
    assert message in error.value.message and error.value.hint
    assert "10.0.0.1" in error.value.message


def test_builds_of_torch_for_gpus_and_cpus_count_as_one_version() -> None:
    torch = make_torch("2.13.0+cu128")
    cluster = FakeCluster(METHODS, changed={0: torch, 1: torch, 2: torch})
    setup = make_cluster_setup(cluster, RunSpec(), is_offline=True)
    assert {one.environment.torch.version for one in setup.reports} == {"2.13.0+cu128"}


def make_torch(version: str) -> Change:
    return lambda report: with_environment(
        torch=structs.replace(report.environment.torch, version=version)
    )(report)


def test_different_cards_are_a_warning_of_the_run(tmp_path: Any) -> None:
    def slow(report: SetupReport) -> SetupReport:
        cpu = structs.replace(report.environment.cpu, model="Slow CPU")
        return with_environment(cpu=cpu)(report)

    stored, _ = run(tmp_path, FakeCluster(METHODS, changed={2: slow}))
    (text,) = stored.header.warnings
    assert text.startswith("The workers differ: Example CPU 9000") and "Slow CPU" in text


def test_methods_that_remember_prompts_are_refused() -> None:
    cluster = FakeCluster(
        METHODS, changed={n: lambda r: replace(r, remembering=("sam",)) for n in range(3)}
    )
    with pytest.raises(UserError, match="sam remembers earlier prompts"):
        make_cluster_setup(cluster, RunSpec(), is_offline=True)


def test_servers_are_refused() -> None:
    with pytest.raises(UserError, match="not for servers"):
        make_cluster_setup(FakeCluster(METHODS), RunSpec(backend="server"), is_offline=True)


def test_a_worker_that_refuses_the_model_ends_the_run_with_its_reason(tmp_path: Any) -> None:
    refusal = CheckpointError("Model fake does not fit.", "Use a smaller one.")
    cluster = FakeCluster(METHODS, refusals={1: refusal})
    with pytest.raises(CheckpointError, match="does not fit"):
        run(tmp_path, cluster)


def test_a_worker_checks_its_files_again_after_loading() -> None:
    cluster = FakeCluster(METHODS)
    plan_on(cluster)
    worker = cluster._fresh[0]
    opening = Opening(with_file(worker.report()).about, 16, ())
    with pytest.raises(CheckpointError, match="Model fake has other files here"):
        worker.open("worker-1", opening)


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
    two = with_more_gpus(Demand("GPU", 1, 8), nodes, error)
    assert two == Demand("GPU", 2, 3)
    assert with_more_gpus(two, nodes, error) == Demand("GPU", 3, 1)  # its estimate was too low


def test_a_model_larger_than_a_machine_is_told_with_the_gpus_it_needs() -> None:
    error = TooLarge("It does not fit: 3 such GPUs are needed.", "Other.", num_gpus_needed=3)
    with pytest.raises(TooLarge) as told:
        with_more_gpus(Demand("GPU", 1, 4), [{"GPU": 2.0}, {"GPU": 2.0}], error.at("10.0.0.2"))
    assert told.value.message == (
        "On 10.0.0.2: It does not fit: 3 such GPUs are needed. "
        "The largest machine of the cluster has 2."
    )
    assert told.value.hint == "Other."
    with pytest.raises(TooLarge, match="for a CPU"):
        with_more_gpus(Demand("GPU", 1, 4), [{"GPU": 4.0}], TooLarge("It is too large for a CPU."))


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
    assert "specbench[ray]" in error.value.hint


def test_a_word_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", object())
    with pytest.raises(UserError, match="--ray somewhere is not an address"):
        RayCluster("somewhere").__enter__()


def test_errors_keep_their_class_and_hint_between_processes() -> None:
    error = pickle.loads(pickle.dumps(CheckpointError("No model.", "Fetch it.")))
    assert isinstance(error, SpecbenchError)
    assert (type(error), error.message, error.hint) == (CheckpointError, "No model.", "Fetch it.")
