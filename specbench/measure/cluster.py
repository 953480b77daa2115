"""A Ray cluster as the backend of a run: a driver, which writes the run, and workers.

Ray places the workers, restarts those that die, carries values and keeps logs. All methods of
a sample run on one worker. A worker imports no torch before its environment is set: OpenMP
reads it when torch is loaded.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from specbench.errors import SpecbenchError, UserError, describe_error, reason_of
from specbench.log.backend import WorkerHeader
from specbench.log.differences import WORKERS
from specbench.log.header import MethodHeader, RunHeader
from specbench.log.machine import gpu_numbers
from specbench.machine import environment
from specbench.machine.sampler import CpuSampler
from specbench.measure.base import BackendInfo, Log, Plan, Progress, Sample, SetupInfo
from specbench.measure.plan import make_setup
from specbench.measure.runner import Runner
from specbench.measure.spec import AUTO, PAPER, RunSpec
from specbench.models.chat import ChatCodec
from specbench.types import Record, RecordKey, Request, seed_of

MOST_ATTEMPTS = MOST_RESTARTS = 3
"""Workers that may die at a sample before it counts as failed; restarts of a worker by Ray."""
REACH_S, PLACE_S, RESTART_S, CLOSE_S = 10.0, 60.0, 120.0, 30.0
"""Seconds to wait for the cluster, for places of workers, for a worker when none is left, and
for the last descriptions of all."""
SHARED = {*environment.VARIABLES} - {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
"""Variables that workers get from the driver. The others belong to Ray's choice of a GPU."""
_REACH = "Start it with `ray start --head`, give its address (--ray HOST:PORT), or use --ray local."
_BUSY = (
    "Try again when the machine is less busy: Ray ends if its processes are not up after 15 s. "
    "/tmp/ray/session_latest/logs has the reason."
)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster until the block ends.

    `address` is "local" for this machine, "auto" for the cluster that runs on it, else that of
    a cluster's head, such as "10.0.0.1:6379".

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_local = address == "local"
    if is_local and "ray" not in sys.modules:  # it reads them when imported
        # Workers are as nice as this process, not 15 nicer. Ray's ports are open to the
        # network: the token of this run keeps others out (Ray 2.52 or newer).
        os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray

        if not is_local and address != "auto":  # Ray itself would try for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if not port.isdecimal():
                raise ValueError("it is not an address")
            socket.create_connection((host, int(port)), timeout=REACH_S).close()
        ray.init(
            address=address,
            include_dashboard=False if is_local else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except ImportError as error:
        text = "--ray needs Ray, which is not installed."
        raise UserError(text, 'Install it: pip install "ray[default]>=2.40".') from error
    except Exception as error:  # Ray has no class for it
        where, fix = f"The Ray cluster at {address} cannot be reached", _REACH
        if address == "auto":
            where = "No Ray cluster runs on this machine"
        elif is_local:  # nobody can change its limit
            where, fix = "Ray did not start on this machine", _BUSY
        raise UserError(f"{where}: {reason_of(error).rstrip('.')}.", fix) from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray's own would end the process
    try:
        yield ray
    finally:
        ray.shutdown()


def make_cluster_setup(ray: Any, spec: RunSpec, *, is_offline: bool) -> ClusterSetup:
    """Start a run's workers, and check that they agree with each other and with this machine.

    Raises:
        UserError: workers cannot do the run, or have other files or versions than the others.
    """
    if spec.backend:
        raise UserError(
            "--ray is for methods that specbench runs itself, not for servers.",
            "Leave out --ray, or --backend and --engine.",
        )
    if spec.settings == AUTO:  # measured on one machine
        spec = msgspec.structs.replace(spec, settings=PAPER)
    setups = _start(ray, spec, is_offline=is_offline)
    setups.sort(key=lambda one: msgspec.json.encode(one.about.environment))
    first, about = setups[0], setups[0].about
    environments = [one.about.environment for one in setups if one.about.environment]
    # The driver computes nothing, so its torch may be another build.
    here = msgspec.structs.replace(environment.capture(), torch=environments[0].torch)
    for one in setups:
        one.check(msgspec.structs.replace(about, environment=here))
    if remembering := [label for label, one in about.methods.items() if one.scope == "run"]:
        raise UserError(
            f"{', '.join(remembering)} remembers earlier prompts, which --ray hands to several "
            "workers.",
            "Leave out scope=run, or --ray.",
        )
    told = [text for one in setups for text in one.about.warnings]
    device = about.values.get("device", "cpu")
    machines = sorted({one.device_phrase(device, None) for one in environments})
    if len(machines) > 1:
        told.append(f"The workers differ: {', '.join(machines)}. Tokens/s mix them.")
    # Defaults are left out of files by identity, which another process does not keep.
    methods = msgspec.convert(msgspec.to_builtins(about.methods), dict[str, MethodHeader])
    about = msgspec.structs.replace(about, methods=methods, warnings=tuple(dict.fromkeys(told)))
    title = f"{first.title} on {len(setups)} worker{'s' * (len(setups) > 1)}"
    return replace(first, title=title, about=about)


def _start(ray: Any, spec: RunSpec, *, is_offline: bool) -> list[ClusterSetup]:
    """Start a run's workers. Returns the setups of those that find a place; the others end.

    A worker has a GPU, or as many on one machine as `--device` names. On a CPU each machine
    has one worker with all its cores, so that none disturbs another.

    Raises:
        UserError: no worker can be started, or one lacks what the run needs.
    """
    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    is_on_gpu = spec.device != "cpu" and any(node.get("GPU") for node in nodes.values())
    resource = "GPU" if is_on_gpu or spec.device.startswith("cuda") else "CPU"
    counts = {key: count for key, node in nodes.items() if (count := int(node.get(resource, 0)))}
    amount = max(1, len(gpu_numbers(spec.device))) if resource == "GPU" else 1
    if (most := max(counts.values(), default=0)) < amount:
        several = "s of one machine" if amount > 1 else ""
        raise UserError(
            f"A worker needs {amount} {resource}{several}, and the cluster has {most}.",
            f"Start its machines with `ray start --num-{resource.lower()}s N`, or choose a "
            "--device.",
        )
    shared = {name: os.environ[name] for name in SHARED if name in os.environ}
    if resource == "GPU":
        needs = [{"num_gpus": amount}] * sum(count // amount for count in counts.values())
    else:
        on = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        own = ((on(key, soft=False), count) for key, count in counts.items())
        needs = [{"num_cpus": count, "scheduling_strategy": node} for node, count in own]
    kind, number = ray.remote(Worker), len(needs)
    kinds = [kind.options(max_restarts=MOST_RESTARTS, **one) for one in needs]
    started = [one.remote(spec, is_offline=is_offline, shared=shared) for one in kinds]
    places = {actor.__ray_ready__.remote(): actor for actor in started}
    placed, _ = ray.wait([*places], num_returns=number, timeout=PLACE_S)
    if not placed:
        raise UserError(
            f"None of {number} workers found a place within {PLACE_S:.0f} s.",
            "See `ray status`: other jobs use the cluster.",
        )
    actors = tuple(places[ref] for ref in placed)  # Ray ends those that no name is left of
    try:
        found = ray.get([actor.report.remote() for actor in actors])
    except ray.exceptions.RayActorError as error:
        raise UserError(
            f"A worker could not start: {reason_of(error)}",
            "Install specbench on every machine; `ray logs` has the reason.",
        ) from error
    return [replace(one, ray=ray, actors=actors) for one in found]


@dataclass(frozen=True)
class ClusterSetup:
    """A setup on a worker's machine, with the workers of the run. No model is loaded yet."""

    address: str
    about: SetupInfo
    title: str
    labels: tuple[str, ...]
    no_checkpoint: tuple[str, ...]
    codec: ChatCodec
    context: int | None
    ray: Any = None
    actors: Sequence[Any] = ()

    def describe(self) -> SetupInfo:
        return self.about

    def check(self, run: SetupInfo) -> None:
        """Raise UserError unless versions and files here are the run's."""
        found = [
            f"{one.field.removeprefix('environment.')} {one.first} (elsewhere {one.second})"
            for one in WORKERS.conflicts(self.about, run)
        ]
        if found:
            raise UserError(
                f"{self.address} has other versions or files: {', '.join(found)}.",
                "Install the same versions and files on every machine of the cluster.",
            )

    def open(self, folder: Path, before: RunHeader | None = None) -> ClusterBackend:
        return ClusterBackend(self, num_named=len(before.workers) if before else 0)


class Job(NamedTuple):
    """A sample to complete, with its records that are known, and the workers lost at it."""

    sample: Sample
    known: Mapping[RecordKey, Record]
    num_lost: int = 0


class Result(NamedTuple):
    """The new records of a sample in the order in which they ran.

    `info` describes the worker. It comes with the first result of a process: a worker that Ray
    started again counts as a new one.
    """

    info: BackendInfo | None
    records: tuple[Record, ...]


class ClusterBackend:
    """The workers of a cluster while a run uses them. They load their models in `warm_up`.

    They are named from "worker-1" on, after `num_named` workers of earlier parts of the run.
    """

    def __init__(self, setup: ClusterSetup, *, num_named: int) -> None:
        self._setup, self._ray, self._num_named = setup, setup.ray, num_named
        self._names: dict[Any, str] = {}
        self._infos: dict[str, BackendInfo] = {}
        self._idle, self._waiting = deque[Any](), deque[Job]()
        self._calls: dict[Any, tuple[Any, Job | None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        last = {actor.close.remote(): self._names[actor] for actor in self._idle}
        for call in self._ray.wait([*last], num_returns=len(last), timeout=CLOSE_S)[0]:
            with suppress(self._ray.exceptions.RayError):  # the run is done
                self._infos[last[call]] = self._ray.get(call)
        for actor in self._setup.actors:
            self._ray.kill(actor)

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        """The first worker's part of the header, with the workers themselves.

        A method whose steps any worker had to run eagerly counts as eager.
        """
        infos = self._infos.items()
        modes = [pair for _, info in infos for pair in info.execution.items()]
        return replace(
            next((info for _, info in infos), BackendInfo()),
            execution=dict(sorted(modes, key=lambda pair: pair[1].mode == "eager")),
            gpu=None,
            workers={name: one for name, info in infos for one in info.workers.values()},
            warnings=tuple(f"{name}: {one}" for name, info in infos for one in info.warnings),
        )

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Let all workers load and warm up. Errors show when the run begins."""
        self._opening = self._ray.put((self._setup.about, requests))
        for actor in self._setup.actors:
            self._submit(actor)
        self._ray.wait([*self._calls], num_returns=len(self._calls))

    def runner(self, plan: Plan, log: Log, progress: Progress) -> ClusterBackend:
        """This driver. The workers look for pauses themselves.

        The header is written when a worker joins: it names every worker of the records.
        """
        self._plan, self._log, self._progress = plan, log, progress
        return self

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run all samples. Yields each new record after it is stored.

        The records of a sample are written when it is done: if its worker is lost, another one
        repeats all of it. A pass ends before the next one begins.

        Raises:
            SpecbenchError: no worker is left, and none came back in time.
        """
        for _, one_pass in groupby(_jobs(self._plan, done), lambda job: job.sample.repeat):
            self._waiting.extend(one_pass)
            while self._waiting or self._is_working:
                while self._idle and self._waiting:
                    self._submit(self._idle.popleft(), self._waiting.popleft())
                for record in self._next_records():
                    self._log.append(record)
                    self._progress.sample_finished(record)
                    yield record

    @property
    def _is_working(self) -> bool:
        return any(job for _, job in self._calls.values())

    def _submit(self, actor: Any, job: Job | None = None) -> None:
        """Begin a job; without one, load the model, also after a restart by Ray."""
        complete = actor.complete.options(max_task_retries=0 if job else -1)
        self._calls[complete.remote(self._opening, job)] = actor, job

    def _next_records(self) -> Sequence[Record]:
        """Wait until a call ends. Returns its records, or error records of a job given up.

        Raises:
            SpecbenchError: a worker refuses the model, or none came back within the time.
        """
        done, _ = self._ray.wait([*self._calls], timeout=None if self._is_working else RESTART_S)
        if not done:
            raise SpecbenchError(
                f"No worker is left, and none came back within {RESTART_S:.0f} s.",
                "Repair the cluster (`ray status`), then go on with --resume.",
            )
        actor, job = self._calls.pop(done[0])
        try:
            result: Result = self._ray.get(done[0])
        except self._ray.exceptions.RayActorError as error:
            return self._lost(actor, job, f"{reason_of(error).rstrip('.')}.")
        self._idle.append(actor)
        if result.info is not None:
            name = self._names[actor] = f"worker-{self._num_named + len(self._infos) + 1}"
            self._infos[name] = result.info
            self._log.changed()
            self._progress.message(f"{name} has joined.")
        return [replace(record, worker=self._names[actor]) for record in result.records]

    def _lost(self, actor: Any, job: Job | None, reason: str) -> Sequence[Record]:
        """Let another worker repeat a lost one's job. Returns error records if it is given up.

        A worker that is lost without a job could not be restarted, and is not used again.
        """
        again = f" Another worker repeats {job.sample.prompt.sample_id}." if job else ""
        self._progress.message(f"{self._names.get(actor, 'A worker')} is lost: {reason}{again}")
        if job is None:
            return ()
        self._submit(actor)
        if job.num_lost + 1 < MOST_ATTEMPTS:
            self._waiting.appendleft(job._replace(num_lost=job.num_lost + 1))
            return ()
        error = f"{MOST_ATTEMPTS} workers were lost at it: {reason}"
        return [
            Record(key, "error", 0, seed=seed_of(self._plan.spec.seed, key.request), error=error)
            for label in self._setup.labels
            for key in job.sample.keys(label)
            if key not in job.known
        ]


def _jobs(plan: Plan, done: Iterable[Record]) -> Iterator[Job]:
    """Samples with records that are missing, in the run's order."""
    known = {record.key: record for record in done}
    for sample in plan.samples:
        keys = [key for label in plan.setup.labels for key in sample.keys(label)]
        own = {key: known[key] for key in keys if key in known}
        if len(own) < len(keys):
            yield Job(sample, own)


class Worker:
    """Completes samples of a run. Ray makes it again, in another process, when this one dies.

    `shared` are the driver's environment variables that change speed or numerics: Ray sets
    some of them.
    """

    def __init__(self, spec: RunSpec, *, is_offline: bool, shared: dict[str, str]) -> None:
        import ray

        self._spec, self._is_offline, self._shared = spec, is_offline, shared
        self._stack, self._sampler, self._ray = ExitStack(), CpuSampler(), ray
        self._setup: Any = None
        self._runner: Any = None
        self._done: list[Record] = []
        for name in SHARED:
            os.environ.pop(name, None)
        os.environ.update(shared)

    def report(self) -> ClusterSetup:
        """The setup on this machine.

        Raises:
            UserError: it cannot be made here; the message names the machine.
        """
        address = str(self._ray.util.get_node_ip_address())
        try:
            self._setup = self._setup or make_setup(self._spec, is_offline=self._is_offline)
            about = self._setup.describe()
        except SpecbenchError as error:
            raise error.at(address) from error
        except Exception as error:
            raise UserError(f"A worker on {address} failed: {describe_error(error)}") from error
        # Ray has set others, such as its choice of GPUs, which `gpu_ids` has.
        self._machine = msgspec.structs.replace(environment.capture(), variables=self._shared)
        told = filter(None, (*about.warnings, environment.busy_warning()))
        about = msgspec.structs.replace(about, environment=self._machine, warnings=tuple(told))
        kept = {one.name: getattr(self._setup, one.name) for one in fields(ClusterSetup)[2:-2]}
        return ClusterSetup(address, about, **kept)

    def complete(self, opening: tuple[SetupInfo, Sequence[Request]], job: Job | None) -> Result:
        """The records of a sample that are not known yet. Without a job, only load the model.

        The first call loads the model, checks that it is the run's (`opening`), and warms up
        with the requests in `opening`.
        """
        info = None if self._runner else self._load(*opening)
        records = self._runner.run_sample(job.sample, job.known) if job else ()
        return Result(info, tuple(records))

    def _load(self, run: SetupInfo, requests: Sequence[Request]) -> BackendInfo:
        self.report()  # makes the setup, if Ray started this process again
        backend = self._stack.enter_context(self._setup.open(Path()))
        self._stack.enter_context(self._sampler)
        self.report().check(run)  # the files may have changed while they were loaded
        backend.warm_up(requests)
        plan = Plan(self._spec, self._setup, (), requests[0].max_new_tokens)
        self._runner = Runner(plan, backend, self, Progress(lambda text: None))
        self._stack.enter_context(self._runner.watch)
        return self._describe()

    def close(self) -> BackendInfo:
        """Free the model. Returns the last description of the worker."""
        self._stack.close()
        return self._describe()

    def append(self, record: Record) -> None:
        """Keep what describes the work; the driver writes the record."""
        self._done.append(replace(record, token_ids=(), text="", token_ends=(), trace=()))

    def _describe(self) -> BackendInfo:
        """The worker as measured so far. It has no name yet."""
        info, context = self._runner.backend.describe(self._done), self._ray.get_runtime_context()
        header = WorkerHeader(
            node=context.get_node_id()[:12],
            gpu_ids=tuple(map(str, context.get_accelerator_ids().get("GPU", ()))),
            environment=self._machine,
            preparation=info.preparation,
            threads=info.threads,
            roofline=info.roofline,
            gpu=info.gpu,
            cpu=self._sampler.describe(),
        )
        return replace(info, workers={"": header})
