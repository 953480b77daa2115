"""A Ray cluster as the backend of a run: a driver, which writes the run, and workers.

Ray places the workers, restarts those that die, carries values and keeps logs. All methods of
a sample run on one worker. A worker imports no torch before its environment is set: OpenMP
reads it when torch is loaded.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
from msgspec.structs import replace as replace_part

from specbench.errors import SpecbenchError, TooLarge, UserError, describe_error, reason_of
from specbench.log.backend import WorkerHeader
from specbench.log.differences import WORKERS
from specbench.log.header import MethodHeader, RunHeader
from specbench.log.machine import Environment
from specbench.machine import environment
from specbench.machine.sampler import CpuSampler
from specbench.machine.threads import wait_briefly
from specbench.measure.backends import make_setup
from specbench.measure.base import (
    BackendInfo,
    Codec,
    Log,
    Plan,
    Progress,
    Sample,
    Setup,
    SetupInfo,
)
from specbench.measure.progress import Lines
from specbench.measure.runner import Runner
from specbench.measure.settings import AUTO, PAPER
from specbench.measure.spec import RunSpec
from specbench.types import Record, Request, RequestKey, seed_of

MOST_ATTEMPTS = MOST_RESTARTS = 3
"""Workers that may be lost at one sample before it counts as failed; restarts of one by Ray."""
REACH_S, PLACE_S, RESTART_S, CLOSE_S = 10.0, 60.0, 120.0, 30.0
"""Seconds to wait for the cluster, for places of workers, for a worker when none is left, and
for the last descriptions of all."""
SHARED = {*environment.VARIABLES} - {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
"""Variables that workers have from the driver. The others belong to Ray's choice of a GPU."""
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
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    is_local = address == "local"
    if is_local and "ray" not in sys.modules:  # it reads them when imported
        # Workers are as nice as this process, not 15 nicer. Ray's ports are open to the network,
        # so that only who knows this run's token may use them (Ray 2.52 or newer).
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
            logging_level=logging.ERROR,
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
        for one, handler in handlers.items():  # Ray's own would end the process
            signal.signal(one, handler)
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
        spec = replace_part(spec, settings=PAPER)
    setups = _start(ray, spec, is_offline=is_offline)
    setups.sort(key=lambda one: msgspec.json.encode(one.about.environment))
    about = setups[0].about
    assert about.environment is not None
    # The driver computes nothing, so that its torch may be another build.
    here = replace_part(environment.capture(), torch=about.environment.torch)
    for one in setups:
        one.check(replace_part(about, environment=here))
    if remembering := [label for label, one in about.methods.items() if one.scope == "run"]:
        raise UserError(
            f"{', '.join(remembering)} remembers earlier prompts, which --ray hands to several "
            "workers.",
            "Leave out scope=run, or --ray.",
        )
    number = f"{len(setups)} worker{'s' * (len(setups) > 1)}"
    return replace(setups[0], title=f"{setups[0].title} on {number}", about=_about_all(setups))


def _start(ray: Any, spec: RunSpec, *, is_offline: bool) -> list[ClusterSetup]:
    """Start a run's workers, each with its setup.

    A worker has a GPU, or several on one machine for a model that is too large for fewer. On a
    CPU it has all cores of the smallest machine, so that none disturbs another.

    Raises:
        UserError: no worker can be started, or one has not what the run needs.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    is_on_gpu = spec.device != "cpu" and any(node.get("GPU") for node in nodes)
    resource = "GPU" if is_on_gpu or spec.device.startswith("cuda") else "CPU"
    counts = [count for node in nodes if (count := int(node.get(resource, 0)))]
    if not counts:
        raise UserError(
            f"A worker needs 1 {resource}, and the cluster has 0.",
            f"Start its machines with `ray start --num-{resource.lower()}s N`, or choose a "
            "--device.",
        )
    amount = 1 if resource == "GPU" else min(counts)
    variables = {name: os.environ[name] for name in SHARED if name in os.environ}
    while True:
        kind = ray.remote(Worker).options(
            max_restarts=MOST_RESTARTS, **{f"num_{resource.lower()}s": amount}
        )
        actors = [
            kind.remote(spec, is_offline=is_offline, variables=variables)
            for _ in range(sum(count // amount for count in counts))
        ]
        try:
            return _setups(ray, actors)
        except TooLarge as error:
            amount = max(error.num_gpus_needed, amount + 1)  # an estimate may be too low
            if not error.num_gpus_needed:
                raise
            if amount > max(counts):
                most = f" The largest machine of the cluster has {max(counts)}."
                raise TooLarge(error.message + most, error.hint) from error


def _setups(ray: Any, actors: Sequence[Any]) -> list[ClusterSetup]:
    """The setups of the workers that find a place; the others end."""
    places = {actor.__ray_ready__.remote(): actor for actor in actors}
    placed, late = ray.wait([*places], num_returns=len(places), timeout=PLACE_S)
    for ref in late:
        ray.kill(places[ref])
    if not placed:
        raise UserError(
            f"None of {len(actors)} workers found a place within {PLACE_S:.0f} s.",
            "See `ray status`: other jobs use the cluster.",
        )
    actors = tuple(places[ref] for ref in placed)
    try:
        found = [_result(ray, ref) for ref in [actor.report.remote() for actor in actors]]
    except ray.exceptions.RayActorError as error:
        raise UserError(
            f"A worker could not start: {reason_of(error)}",
            "Install specbench on every machine; `ray logs` has the reason.",
        ) from error
    return [replace(one, ray=ray, actors=actors) for one in found]


def _result(ray: Any, call: Any) -> Any:
    """The result of a call, or the error that the worker raised; RayActorError if it is lost."""
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _about_all(setups: Sequence[ClusterSetup]) -> SetupInfo:
    """The first worker's description, with the warnings of all and their differences."""
    about = setups[0].about
    device = about.values.get("device", "cpu")
    environments = [one.about.environment for one in setups]
    machines = {one.device_phrase(device, None) for one in environments if one}
    told = [text for one in setups for text in one.about.warnings]
    if len(machines) > 1:
        text = ", ".join(sorted(machines))
        told.append(f"The workers differ: {text}. Tokens/s mix them.")
    # Defaults are left out of files by identity, which another process does not keep.
    methods = msgspec.convert(msgspec.to_builtins(about.methods), dict[str, MethodHeader])
    return replace_part(about, methods=methods, warnings=tuple(dict.fromkeys(told)))


@dataclass(frozen=True)
class ClusterSetup:
    """A setup on a worker's machine, with the workers of the run. No model is loaded yet."""

    address: str
    about: SetupInfo
    title: str
    labels: tuple[str, ...]
    no_checkpoint: tuple[str, ...]
    codec: Codec
    context: int | None
    default_budget: int
    ray: Any = None
    actors: Sequence[Any] = ()

    def describe(self) -> SetupInfo:
        return self.about

    def check(self, run: SetupInfo) -> None:
        """Raise UserError unless versions and files here are those of the run."""
        if found := WORKERS.conflicts(self.about, run):
            listed = ", ".join(
                f"{one.field.removeprefix('environment.')} {one.first} (elsewhere {one.second})"
                for one in found
            )
            raise UserError(
                f"{self.address} has other versions or files: {listed}.",
                "Install the same versions and files on every machine of the cluster.",
            )

    def open(self, folder: Path, before: RunHeader | None = None) -> ClusterBackend:
        return ClusterBackend(self, num_named=len(before.workers) if before else 0)


class Job(NamedTuple):
    """A sample to complete, with the records of it that are known."""

    sample: Sample
    known: Sequence[Record]


class Result(NamedTuple):
    """The new records of a sample in the order in which they ran.

    `info` describes the worker. It comes with the first result of a process, which is another
    worker from then on.
    """

    info: BackendInfo | None
    records: tuple[Record, ...] = ()


class ClusterBackend:
    """The workers of a cluster while a run uses them. They load their models in `warm_up`.

    They are named from "worker-1" on, after `num_named` workers of earlier parts of the run.
    """

    def __init__(self, setup: ClusterSetup, *, num_named: int) -> None:
        self._setup, self._ray, self._num_named = setup, setup.ray, num_named
        self._names: dict[Any, str] = {}
        self._infos: dict[str, BackendInfo] = {}
        self._idle = deque[Any]()
        self._calls: dict[Any, tuple[Any, Job | None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        last = {actor.close.remote(): self._names[actor] for actor in self._idle}
        for call in self._ended(last, CLOSE_S, len(last)):
            with suppress(SpecbenchError, self._ray.exceptions.RayError):  # the run is done
                self._infos[last[call]] = _result(self._ray, call)
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
        """Let all workers load and warm up.

        Raises:
            SpecbenchError: a worker refused the model, or none is ready.
        """
        self._opening = self._ray.put((self._setup.about, requests))
        for actor in self._setup.actors:
            self._submit(actor)
        while self._calls:
            self._next_result(None)
        if not self._idle:
            raise SpecbenchError(
                "No worker could load the model: all are lost.",
                "See `ray logs` or the dashboard, then go on with --resume.",
            )

    def runner(self, plan: Plan, log: Log, progress: Progress) -> ClusterBackend:
        """This driver of the workers, who look for pauses themselves.

        A header that is written when a worker joins names all that records can name.
        """
        self._plan, self._log, self._progress = plan, log, progress
        return self

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run all samples. Yields each new record after it is stored.

        The records of a sample are written when it is done: if its worker is lost, another one
        repeats all of it. If the number of passes is open, one ends before the next begins.

        Raises:
            SpecbenchError: no worker is left, and none came back in time.
        """
        self._waiting, self._num_lost = deque[Job](), Counter[RequestKey]()
        is_open = self._plan.spec.until_ci is not None
        jobs = _jobs(self._plan, done)
        for _, one_pass in groupby(jobs, key=lambda job: job.sample.repeat if is_open else 0):
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
        """Begin a job; without one, load the model, if need be after Ray started it again."""
        complete = actor.complete.options(max_task_retries=0 if job else -1)
        self._calls[complete.remote(self._opening, job)] = actor, job

    def _ended(self, calls: Collection[Any], timeout_s: float | None, number: int = 1) -> list[Any]:
        """The calls that have ended, once `number` have; fewer after the timeout."""
        if not calls:
            return []
        done, _ = self._ray.wait([*calls], num_returns=number, timeout=timeout_s)
        return list(done)

    def _next_result(self, timeout_s: float | None) -> tuple[Any, Job | None, Result | str]:
        """Wait until a call ends. Returns its result, or the reason why its worker is lost.

        Raises:
            SpecbenchError: its worker refuses the model, or no call ended within the time.
        """
        done = self._ended(self._calls, timeout_s)
        if not done:
            raise SpecbenchError(
                f"No worker is left, and none came back within {RESTART_S:.0f} s.",
                "Repair the cluster (`ray status`), then go on with --resume.",
            )
        actor, job = self._calls.pop(done[0])
        try:
            result: Result = _result(self._ray, done[0])
        except self._ray.exceptions.RayActorError as error:
            return actor, job, f"{reason_of(error).rstrip('.')}."
        if result.info is not None:
            self._num_named += 1
            self._names[actor] = f"worker-{self._num_named}"
            self._infos[self._names[actor]] = result.info
        self._idle.append(actor)
        return actor, job, result

    def _next_records(self) -> Sequence[Record]:
        """Wait until a call ends. Returns its records, or error records of a job given up."""
        actor, job, result = self._next_result(None if self._is_working else RESTART_S)
        name = self._names.get(actor, "A worker")
        if isinstance(result, Result):
            if result.info is not None:
                self._log.changed()
                self._progress.message(f"{name} has joined.")
            return [replace(record, worker=name) for record in result.records]
        again = f" Another worker repeats {job.sample.prompt.sample_id}." if job else ""
        self._progress.message(f"{name} is lost: {result}{again}")
        if job is None:
            return ()
        self._submit(actor)
        key = job.sample.key(0)
        self._num_lost[key] += 1
        if self._num_lost[key] < MOST_ATTEMPTS:
            self._waiting.appendleft(job)
            return ()
        return _failed_records(
            self._plan, job, f"{MOST_ATTEMPTS} workers were lost at it: {result}"
        )


def _jobs(plan: Plan, done: Iterable[Record]) -> Iterator[Job]:
    """Samples with records that are missing, in the run's order."""
    known = defaultdict[RequestKey, list[Record]](list)
    for record in done:
        known[record.key.request._replace(turn=0)].append(record)
    for sample in plan.samples:
        own = known.pop(sample.key(0), [])
        if len(own) < len(plan.setup.labels) * len(sample.prompt.turns):
            yield Job(sample, own)


def _failed_records(plan: Plan, job: Job, error: str) -> list[Record]:
    """Error records of what is missing of a job."""
    known = {record.key for record in job.known}
    return [
        Record(key, "error", 0, seed=seed_of(plan.spec.seed, key.request), error=error)
        for label in plan.setup.labels
        for key in job.sample.keys(label)
        if key not in known
    ]


class Worker:
    """Completes samples of a run. Ray makes it again, in another process, when this one dies.

    `variables` are the driver's environment variables that change speed or numerics: Ray sets
    some of them.
    """

    def __init__(self, spec: RunSpec, *, is_offline: bool, variables: Mapping[str, str]) -> None:
        self._spec, self._is_offline = spec, is_offline
        self._stack, self._sampler = ExitStack(), CpuSampler()
        self._runner: Runner | None = None
        self._done: list[Record] = []
        for name in SHARED:
            os.environ.pop(name, None)
        os.environ.update(variables)
        wait_briefly()

    @cached_property
    def _setup(self) -> Setup:
        return make_setup(self._spec, is_offline=self._is_offline)

    @cached_property
    def _environment(self) -> Environment:
        """This machine, without the choice of GPUs, which the place says."""
        found = environment.capture()
        own = {k: v for k, v in found.variables.items() if k != "CUDA_VISIBLE_DEVICES"}
        return replace_part(found, variables=own)

    def report(self) -> ClusterSetup:
        """The setup on this machine.

        Raises:
            UserError: it cannot be made here; the message names the machine.
        """
        import ray

        address = str(ray.util.get_node_ip_address())
        try:
            setup, about = self._setup, self._setup.describe()
        except SpecbenchError as error:
            raise error.at(address) from error
        except Exception as error:
            raise UserError(f"A worker on {address} failed: {describe_error(error)}") from error
        told = filter(None, (*about.warnings, environment.busy_warning()))
        about = replace_part(about, environment=self._environment, warnings=tuple(told))
        own = {one.name: getattr(setup, one.name) for one in fields(ClusterSetup)[2:-2]}
        return ClusterSetup(address, about, **own)

    def complete(self, opening: tuple[SetupInfo, Sequence[Request]], job: Job | None) -> Result:
        """The records of a sample that are not known yet; without one, the model is loaded only.

        The first call loads it, checks that it is that of the run (`opening`), and warms up
        with the requests in it.
        """
        is_new = self._runner is None
        runner = self._runner = self._runner or self._load(*opening)
        info = self._describe() if is_new else None
        known = {record.key: record for record in job.known} if job else {}
        return Result(info, tuple(runner.run_sample(job.sample, known)) if job else ())

    def _load(self, run: SetupInfo, requests: Sequence[Request]) -> Runner:
        self._backend = self._stack.enter_context(self._setup.open(Path()))
        self._stack.enter_context(self._sampler)
        self.report().check(run)
        self._backend.warm_up(requests)
        plan = Plan(self._spec, self._setup, (), requests[0].max_new_tokens)
        runner = self._backend.runner(plan, self, Lines(lambda text: None))
        assert isinstance(runner, Runner)
        self._stack.enter_context(runner.watch)
        return runner

    def close(self) -> BackendInfo:
        """Free the model. Returns the last description of the worker."""
        self._stack.close()
        return self._describe()

    def append(self, record: Record) -> None:
        """Keep what describes the work; the driver writes the record."""
        self._done.append(replace(record, token_ids=(), text="", token_ends=(), trace=()))

    def changed(self) -> None:
        """Do nothing: the driver writes the header."""

    def _describe(self) -> BackendInfo:
        """The worker as measured so far. It has no name yet."""
        import ray

        info, context = self._backend.describe(self._done), ray.get_runtime_context()
        header = WorkerHeader(
            node=context.get_node_id()[:12],
            gpu_ids=tuple(map(str, context.get_accelerator_ids().get("GPU", ()))),
            environment=self._environment,
            preparation=info.preparation,
            threads=info.threads,
            roofline=info.roofline,
            gpu=info.gpu,
            cpu=self._sampler.describe(),
        )
        return replace(info, workers={"": header})
