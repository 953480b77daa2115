"""A cluster as the backend of a run, whose driver hands samples to workers and writes records.

Its setup is that of its workers, who must agree. All methods of a sample run on one worker.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import msgspec

from specbench.errors import SpecbenchError, UserError
from specbench.log.header import MethodHeader, RunHeader
from specbench.log.machine import Environment
from specbench.machine import environment
from specbench.measure.base import BackendInfo, Log, Plan, Progress, SetupInfo
from specbench.measure.cluster.ray_cluster import RayCluster, WorkerLost
from specbench.measure.cluster.worker import Job, Opening, RemoteSetup, Result, WorkerState
from specbench.measure.spec import RunSpec
from specbench.types import Record, Request, RequestKey, seed_of

MOST_ATTEMPTS = 3
"""Workers that may be lost at one sample before it counts as failed."""
RESTART_S, CLOSE_S = 120.0, 30.0
"""Seconds to wait for a worker when none is left, and for the last states of all."""


def make_cluster_setup(cluster: RayCluster, spec: RunSpec, *, is_offline: bool) -> ClusterSetup:
    """Start a run's workers, and check that they agree with each other and with this machine.

    Raises:
        UserError: workers cannot do the run, or have other files or versions than the others.
    """
    if spec.backend:
        raise UserError(
            "--ray is for methods that specbench runs itself, not for servers.",
            "Leave out --ray, or --backend and --engine.",
        )
    reports = sorted(
        cluster.start(spec, is_offline=is_offline),
        key=lambda one: msgspec.json.encode(one.environment),
    )
    first, here = reports[0], environment.capture()
    for one in reports:
        _check_versions(one, here)
    remembering = [label for label, one in first.about.methods.items() if one.scope == "run"]
    if remembering:
        raise UserError(
            f"{', '.join(remembering)} remembers earlier prompts, which --ray hands to several "
            "workers.",
            "Leave out scope=run, or --ray.",
        )
    values = {one.name: getattr(first, one.name) for one in fields(first)}
    values["about"] = _about_all(reports)
    title = f"{first.title} on {len(reports)} worker{'s' * (len(reports) > 1)}"
    return ClusterSetup(**values | {"title": title}, cluster=cluster)


def _check_versions(report: RemoteSetup, here: Environment) -> None:
    """Raise UserError if a worker's packages have other versions than those of the driver."""
    there, own = _versions(report.environment), _versions(here)
    differences = [
        f"{name} {there[name] or 'not at all'} (here {own[name] or 'not at all'})"
        for name in own
        if there[name] != own[name]
    ]
    if differences:
        raise UserError(
            f"{report.address} has other versions: {', '.join(differences)}.",
            "Install the same versions on every machine of the cluster.",
        )


def _versions(of: Environment) -> dict[str, str | None]:
    """Packages with their versions. Builds of torch for CPUs and GPUs count as equal."""
    return {
        "specbench": of.specbench,
        "its commit": of.git.commit[:12] if of.git else None,
        "Python": of.python.rpartition(".")[0],
        "torch": of.torch.version.partition("+")[0],
        "transformers": of.transformers,
    }


@dataclass(frozen=True)
class ClusterSetup(RemoteSetup):
    """The setup of a cluster's workers, as the first of them reports it."""

    cluster: RayCluster

    def describe(self) -> SetupInfo:
        return self.about

    def open(self, folder: Path, before: RunHeader | None = None) -> ClusterBackend:
        return ClusterBackend(self, num_named=len(before.workers) if before else 0)


def _about_all(reports: Sequence[RemoteSetup]) -> SetupInfo:
    """The first worker's description, with the warnings of all and their differences."""
    about, environments = reports[0].about, [one.environment for one in reports]
    machines = {one.device_phrase(about.values.get("device", "cpu"), None) for one in environments}
    software = {one.software_phrase for one in environments}
    kinds = [", ".join(sorted(found)) for found in (machines, software) if len(found) > 1]
    mixed = [f"The workers differ: {kind}. Tokens/s mix them." for kind in kinds]
    told = [text for one in reports for text in one.about.warnings]
    return replace(
        about,
        # Defaults are left out of files by identity, which another process does not keep.
        methods=msgspec.convert(msgspec.to_builtins(about.methods), dict[str, MethodHeader]),
        warnings=tuple(dict.fromkeys((*told, *mixed))),
        environment=environments[0],
    )


@dataclass(slots=True, eq=False)
class _Worker:
    """An actor of Ray, under the name of the process that it has now."""

    actor: Any
    name: str = "A worker"


class ClusterBackend:
    """The workers of a cluster while a run uses them. They load their models in `warm_up`.

    They are named from "worker-1" on, after `num_named` workers of earlier parts of the run.
    """

    def __init__(self, setup: ClusterSetup, *, num_named: int) -> None:
        self.cluster, self._about, self._num_named = setup.cluster, setup.describe(), num_named
        self._states: dict[str, WorkerState] = {}
        self.idle = deque[_Worker]()
        self.calls: dict[Any, tuple[_Worker, Job | None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        last = {worker.actor.close.remote(): worker.name for worker in self.idle}
        for ref in self.cluster.wait(last, CLOSE_S, number=len(last)):
            try:
                self._states[last[ref]] = self.cluster.get(ref)
            except SpecbenchError:  # it died meanwhile: the run is done
                continue
        self.cluster.stop()

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        """The first worker's part of the header, with the workers themselves.

        A method whose steps any worker had to run eagerly counts as eager.
        """
        if not self._states:
            return BackendInfo()
        infos = {name: state.info for name, state in self._states.items()}
        modes = [pair for info in infos.values() for pair in info.execution.items()]
        return replace(
            next(iter(infos.values())),
            execution=dict(sorted(modes, key=lambda pair: pair[1].mode == "eager")),
            gpu=None,
            workers={name: state.header for name, state in self._states.items()},
            warnings=tuple(f"{name}: {text}" for name in infos for text in infos[name].warnings),
        )

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Let all workers load and warm up.

        Raises:
            SpecbenchError: a worker refused the model, or none is ready.
        """
        self._opening = self.cluster.ray.put(Opening(self._about, requests))
        for actor in self.cluster.actors:
            self.submit(_Worker(actor))
        reason = "no worker is free"
        while found := self.next_result(None):
            if isinstance(found[2], WorkerLost):
                reason = found[2].message
        if not self.idle:
            raise SpecbenchError(
                f"No worker could load the model: {reason}",
                "See `ray logs` or the dashboard, then go on with --resume.",
            )

    def submit(self, worker: _Worker, job: Job | None = None) -> None:
        """Begin a job; without one, to load the model, if need be after Ray started it again."""
        complete = worker.actor.complete.options(max_task_retries=0 if job else -1)
        self.calls[complete.remote(self._opening, job)] = worker, job

    def next_result(
        self, timeout_s: float | None
    ) -> tuple[_Worker, Job | None, Result | WorkerLost] | None:
        """Wait until a call ends. Returns it, or None after the timeout or without any call.

        Raises:
            SpecbenchError: its worker refuses the model.
        """
        done = self.cluster.wait(self.calls, timeout_s)
        if not done:
            return None
        worker, job = self.calls.pop(done[0])
        try:
            result: Result = self.cluster.get(done[0])
        except WorkerLost as error:
            return worker, job, error
        if result.state is not None:
            self._num_named += 1
            worker.name = f"worker-{self._num_named}"
            self._states[worker.name] = result.state
        self.idle.append(worker)
        return worker, job, result

    def runner(self, plan: Plan, log: Log, progress: Progress) -> ClusterRunner:
        """The driver of the workers, who look for pauses themselves.

        A header that is written when a worker joins names all that records can name.
        """
        return ClusterRunner(plan, self, log, progress)


@dataclass(slots=True)
class ClusterRunner:
    """Completes a plan's samples with a cluster, except those that are done.

    The records of a sample are written when the whole sample is done: if its worker is lost,
    another one does all of it.
    """

    plan: Plan
    workers: ClusterBackend
    log: Log
    progress: Progress
    _waiting: deque[Job] = field(default_factory=deque)
    _num_lost: Counter[RequestKey] = field(default_factory=Counter)

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run all samples. Yields each new record after it is stored.

        If the number of passes is open, one ends before the next begins.

        Raises:
            SpecbenchError: no worker is left, and none came back in time.
        """
        is_open = self.plan.spec.until_ci is not None
        jobs = _jobs(self.plan, done)
        for _, one_pass in groupby(jobs, key=lambda job: job.sample.repeat if is_open else 0):
            self._waiting.extend(one_pass)
            while self._waiting or self._is_working:
                while self.workers.idle and self._waiting:
                    self.workers.submit(self.workers.idle.popleft(), self._waiting.popleft())
                for record in self._next_records():
                    self.log.append(record)
                    self.progress.sample_finished(record)
                    yield record

    @property
    def _is_working(self) -> bool:
        return any(job for _, job in self.workers.calls.values())

    def _next_records(self) -> Sequence[Record]:
        """Wait until a call ends. Returns its records, or error records of what it was to do."""
        found = self.workers.next_result(None if self._is_working else RESTART_S)
        if found is None:
            raise SpecbenchError(
                f"No worker is left, and none came back within {RESTART_S:.0f} s.",
                "Repair the cluster (`ray status`), then go on with --resume.",
            )
        worker, job, result = found
        if isinstance(result, WorkerLost):
            return self._lost(worker, job, f"{result.message.rstrip('.')}.")
        if result.state is not None:
            self.log.changed()
            self.progress.message(f"{worker.name} has joined.")
        return [replace(record, worker=worker.name) for record in result.records]

    def _lost(self, worker: _Worker, job: Job | None, reason: str) -> Sequence[Record]:
        """Hand the job of a lost worker to another one, or give it up."""
        again = f" Another worker repeats {job.sample.prompt.sample_id}." if job else ""
        self.progress.message(f"{worker.name} is lost: {reason}{again}")
        if job is None:
            return ()
        self.workers.submit(worker)
        key = job.sample.key(0)
        self._num_lost[key] += 1
        if self._num_lost[key] < MOST_ATTEMPTS:
            self._waiting.appendleft(job)
            return ()
        return _failed_records(self.plan, job, f"{MOST_ATTEMPTS} workers were lost at it: {reason}")


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
