"""Start the workers of a run on a cluster, and check that their setups agree."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from specbench.errors import UserError, reason_of
from specbench.log.header import RunHeader
from specbench.log.machine import gpu_numbers
from specbench.log.methods import MethodHeader
from specbench.machine import environment
from specbench.measure.base import SetupInfo
from specbench.measure.cluster.driver import ClusterBackend
from specbench.measure.cluster.messages import RemoteSetup, WorkerReport
from specbench.measure.cluster.worker import SHARED_VARIABLES, Worker
from specbench.measure.spec import AUTO, PAPER, RunSpec

PLACE_S = 60.0
"""Seconds to wait until Ray has found places for the workers."""
MOST_RESTARTS = 3
"""The most times that Ray restarts a worker."""


@dataclass(frozen=True)
class ClusterSetup(RemoteSetup):
    """The workers of a run, and the setup that they share. No model is loaded yet."""

    ray: Any
    """The module `ray`, connected."""
    actors: Sequence[Any]
    """Ray's handles of the workers. Ray ends a worker when its last handle is gone."""

    def describe(self) -> SetupInfo:
        return self.about

    def open(self, folder: Path, before: RunHeader | None = None) -> ClusterBackend:
        """The backend of a run. `before` is the header of a resumed run, whose workers keep their
        names; None for a new run.
        """
        num_named = len(before.workers) if before else 0
        return ClusterBackend(self.ray, self.actors, self.about, num_named=num_named)


def make_cluster_setup(ray: Any, spec: RunSpec, *, is_offline: bool) -> ClusterSetup:
    """Start a run's workers. Check that all have the same files, and this machine's versions.

    `ray` is the connected module, `spec` has the run's options. With `is_offline`, workers use no
    network. Each worker reports its setup. The report's `about` is the header's part about model
    and methods, with the hardware and versions of the worker's machine as `environment`. The report
    also has a title, the methods' labels, the methods without a checkpoint, the codec (chats to
    tokens and back) and the length of the context in tokens.

    Raises:
        UserError: workers cannot do the run, or their files or versions differ.
    """
    if spec.backend:  # "server"; empty for methods that workers run themselves
        raise UserError(
            "--ray is for methods that specbench runs itself, not for servers.",
            "Leave out --ray, or --backend and --engine.",
        )
    if spec.energy:
        raise UserError("--energy is for one machine, not for --ray.", "Leave out one of them.")
    # AUTO would choose the sizes of drafts by the times of a single machine. So the run uses the
    # sizes of the papers.
    if spec.settings == AUTO:
        spec = msgspec.structs.replace(spec, settings=PAPER)
    started = _start_workers(ray, spec, is_offline=is_offline)  # their actors and reports
    # The run gets the setup of the first report. The reports are sorted by machine, so that the
    # setup does not depend on which worker started first.
    reports = sorted(
        started.reports, key=lambda report: msgspec.json.encode(report.about.environment)
    )
    _check_agreement(reports)  # raises UserError
    first_report = reports[0]
    # The headers of methods by label, rebuilt in this process. A header's file leaves out a field
    # only if it holds the default object of this process. A worker's default is another object.
    method_headers = msgspec.convert(
        msgspec.to_builtins(first_report.about.methods), dict[str, MethodHeader]
    )
    worker_word = "worker" if len(reports) == 1 else "workers"
    return ClusterSetup(
        ray=ray,
        actors=started.actors,
        about=msgspec.structs.replace(
            first_report.about, methods=method_headers, warnings=_warnings(reports)
        ),
        title=f"{first_report.title} on {len(reports)} {worker_word}",
        labels=first_report.labels,
        no_checkpoint=first_report.no_checkpoint,
        codec=first_report.codec,
        context=first_report.context,
    )


def _check_agreement(reports: Sequence[WorkerReport]) -> None:
    """Check that all workers have the first worker's setup and this machine's versions.

    A report's `about` is the header's part about model, files and methods (by label), with the
    hardware and versions of the worker's machine as `environment`.

    Raises:
        UserError: a worker has other files, methods or versions, or a method remembers earlier
            prompts (this is refused even if there is only one worker).
    """
    about = reports[0].about  # the first worker's
    this_machine = environment.capture()  # hardware and versions of this process
    if about.environment is not None:  # a worker's report always has one
        # This process computes nothing, so it may have another build of torch.
        this_machine = msgspec.structs.replace(this_machine, torch=about.environment.torch)
    # The first worker's model, files and methods, with the versions of this process.
    expected = msgspec.structs.replace(about, environment=this_machine)
    for report in reports:
        report.check(expected)  # raises UserError if versions or files differ
    # Methods that remember earlier prompts of the run.
    labels_with_scope_run = [
        label for label, method in about.methods.items() if method.scope == "run"
    ]
    if labels_with_scope_run:
        raise UserError(
            f"{', '.join(labels_with_scope_run)} remembers earlier prompts, which --ray divides "
            "among workers.",
            "Leave out scope=run, or --ray.",
        )


def _warnings(reports: Sequence[WorkerReport]) -> tuple[str, ...]:
    """The warnings of all workers without duplicates, and another if their hardware differs."""
    warnings = [warning for report in reports for warning in report.about.warnings]
    device = reports[0].about.values.get("device", "cpu")  # the same for all, such as "cuda:0"
    machines = {  # the hardware of the workers in words, without a number of threads (None)
        report.about.environment.device_phrase(device, None)
        for report in reports
        if report.about.environment
    }
    if len(machines) > 1:
        names = ", ".join(sorted(machines))
        warnings.append(f"The workers differ: {names}. Tokens/s are averages over them.")
    return tuple(dict.fromkeys(warnings))


class StartedWorkers(NamedTuple):
    """The workers for which Ray found a place."""

    actors: tuple[Any, ...]
    """Ray's handles of the workers."""
    reports: Sequence[WorkerReport]
    """The report of each worker, in the order of `actors`."""


def _start_workers(ray: Any, spec: RunSpec, *, is_offline: bool) -> StartedWorkers:
    """Start a run's workers on the machines of the cluster, and let each report its setup.

    Workers for which Ray finds no place within PLACE_S seconds are dropped. An actor is Ray's
    handle of a worker.

    Args:
        ray: the connected module.
        spec: the run's options.
        is_offline: workers use no network.

    Returns:
        The actors of the workers that started, and their reports, in the same order.

    Raises:
        UserError: no worker can be started, or a worker lacks something that the run needs.
    """
    # Environment variables of this process, by name, that the workers get.
    shared_variables = {name: os.environ[name] for name in SHARED_VARIABLES if name in os.environ}
    worker_class = ray.remote(Worker)  # starts a worker in a process of the cluster
    # The actors, each by Ray's reference to a call that ends when its worker has started.
    actors_by_start: dict[Any, Any] = {}
    # Ray's options for the GPUs or CPUs of each worker.
    for resources in _resources_of_workers(ray, spec.device):
        class_with_resources = worker_class.options(max_restarts=MOST_RESTARTS, **resources)
        actor = class_with_resources.remote(spec, is_offline=is_offline, shared=shared_variables)
        actors_by_start[actor.__ray_ready__.remote()] = actor
    num_workers = len(actors_by_start)
    # The references of the workers that have started.
    starts, _ = ray.wait([*actors_by_start], num_returns=num_workers, timeout=PLACE_S)
    if not starts:
        raise UserError(
            f"None of {num_workers} workers could be placed within {PLACE_S:.0f} s.",
            "`ray status` shows the jobs that use the cluster.",
        )
    actors = tuple(actors_by_start[start] for start in starts)
    try:
        reports = ray.get([actor.report.remote() for actor in actors])
    # The worker's process ended, or found no place. A UserError of `report` is not caught here.
    except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
        raise UserError(
            f"A worker could not start: {reason_of(error)}",
            "Install specbench on every machine; `ray logs` has the reason.",
        ) from error
    return StartedWorkers(actors, reports)


def _resources_of_workers(ray: Any, device: str) -> list[dict[str, Any]]:
    """The resources of the workers, as one dict of Ray's options for each worker.

    The keys are num_gpus, or num_cpus and scheduling_strategy. `ray` is the connected module,
    `device` the value of `--device`: auto, cpu, cuda, cuda:1 or cuda:0-1. A worker has one GPU, or
    as many GPUs of one machine as `--device` names. On CPUs each machine has one worker with all
    its cores, so that workers do not disturb each other.

    Raises:
        UserError: no machine of the cluster has enough GPUs or CPUs for one worker.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]  # machines, as Ray's dicts
    has_gpus = any(node["Resources"].get("GPU") for node in nodes)
    is_on_gpu = device.startswith("cuda") or (device != "cpu" and has_gpus)  # "auto"
    resource = "GPU" if is_on_gpu else "CPU"
    # GPUs per worker ("cuda:0-1" names two; "auto" names none and means one), or the fewest CPUs.
    num_per_worker = max(1, len(gpu_numbers(device))) if is_on_gpu else 1
    # Numbers of GPUs or CPUs by the id of the machine.
    num_by_node = {node["NodeID"]: int(node["Resources"].get(resource, 0)) for node in nodes}
    most_on_a_node = max(num_by_node.values(), default=0)
    if most_on_a_node < num_per_worker:
        needed_phrase = f"{resource}s on one machine" if num_per_worker > 1 else resource
        raise UserError(
            f"A worker needs {num_per_worker} {needed_phrase}, and the largest machine of the "
            f"cluster has {most_on_a_node}.",
            f"Start its machines with `ray start --num-{resource.lower()}s N`, or choose a "
            "--device.",
        )
    if is_on_gpu:
        num_workers = sum(num_gpus // num_per_worker for num_gpus in num_by_node.values())
        return [{"num_gpus": num_per_worker}] * num_workers
    node_affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    return [
        # soft=False: the worker runs on this machine or not at all.
        {"num_cpus": num_cpus, "scheduling_strategy": node_affinity(node_id, soft=False)}
        for node_id, num_cpus in num_by_node.items()
        if num_cpus  # a machine may offer Ray no CPU
    ]
