"""A cluster as the backend of a run, whose driver hands samples to workers and writes records.

Its setup is that of its workers, who must agree. All methods of a sample run on one worker.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace as replace_part

from specbench.errors import SpecbenchError, UserError
from specbench.log.differences import WORKERS
from specbench.log.header import MethodHeader, RunHeader
from specbench.log.machine import Environment, Git
from specbench.machine import environment
from specbench.measure.base import BackendInfo, Log, Plan, Progress, SetupInfo
from specbench.measure.cluster.ray_cluster import RayCluster, WorkerLost
from specbench.measure.cluster.worker import Job, Opening, RemoteSetup, Result
from specbench.measure.settings import AUTO, PAPER
from specbench.measure.spec import RunSpec
from specbench.types import Record, Request, RequestKey, seed_of

MOST_ATTEMPTS = 3
"""Workers that may be lost at one sample before it counts as failed."""
RESTART_S, CLOSE_S = 120.0, 30.0
"""Seconds to wait for a worker when none is left, and for the last descriptions of all."""


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
    if spec.settings == AUTO:  # measured on one machine
        spec = msgspec.structs.replace(spec, settings=PAPER)
    reports = sorted(
        cluster.start(spec, is_offline=is_offline),
        key=lambda one: msgspec.json.encode(one.about.environment),
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
    title = f"{first.title} on {len(reports)} worker{'s' * (len(reports) > 1)}"
    values = vars(first) | {"title": title, "about": _about_all(reports)}
    return ClusterSetup(**values, cluster=cluster)


def _check_versions(report: RemoteSetup, here: Environment) -> None:
    """Raise UserError if a worker's packages have other versions than those of the driver."""
    assert report.about.environment is not None
    found = WORKERS.conflicts(_released(report.about.environment), _released(here))
    if found:
        listed = ", ".join(f"{one.field} {one.first} (here {one.second})" for one in found)
        raise UserError(
            f"{report.address} has other versions: {listed}.",
            "Install the same versions on every machine of the cluster.",
        )


def _released(of: Environment) -> Environment:
    """The environment less builds of torch and patch releases of Python, which may differ."""
    torch = replace_part(of.torch, version=of.torch.version.partition("+")[0])
    git = of.git or Git("none", is_dirty=False)
    return replace_part(of, torch=torch, python=of.python.rpartition(".")[0], git=git)


@dataclass(frozen=True)
class ClusterSetup(RemoteSetup):
    """The setup of a cluster's workers, as the first of them reports it."""

    cluster: RayCluster

    def open(self, folder: Path, before: RunHeader | None = None) -> ClusterBackend:
        return ClusterBackend(self, num_named=len(before.workers) if before else 0)


def _about_all(reports: Sequence[RemoteSetup]) -> SetupInfo:
    """The first worker's description, with the warnings of all and their differences."""
    about, environments = reports[0].about, [one.about.environment for one in reports]
    device = about.values.get("device", "cpu")
    machines = {one.device_phrase(device, None) for one in environments if one}
    software = {one.software_phrase for one in environments if one}
    kinds = [", ".join(sorted(found)) for found in (machines, software) if len(found) > 1]
    mixed = [f"The workers differ: {kind}. Tokens/s mix them." for kind in kinds]
    told = [text for one in reports for text in one.about.warnings]
    # Defaults are left out of files by identity, which another process does not keep.
    methods = msgspec.convert(msgspec.to_builtins(about.methods), dict[str, MethodHeader])
    return replace(about, methods=methods, warnings=tuple(dict.fromkeys((*told, *mixed))))


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
        self._cluster, self._about, self._num_named = setup.cluster, setup.about, num_named
        self._infos: dict[str, BackendInfo] = {}
        self._idle = deque[_Worker]()
        self._calls: dict[Any, tuple[_Worker, Job | None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        last = {worker.actor.close.remote(): worker.name for worker in self._idle}
        for ref in self._cluster.wait(last, CLOSE_S, number=len(last)):
            with suppress(SpecbenchError):  # it died meanwhile: the run is done
                self._infos[last[ref]] = self._cluster.get(ref)
        self._cluster.stop()

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
        self._opening = self._cluster.ray.put(Opening(self._about, requests))
        for actor in self._cluster.actors:
            self._submit(_Worker(actor))
        reason = "no worker is free"
        while self._calls:
            _, _, result = self._next_result(None)
            reason = result.message if isinstance(result, WorkerLost) else reason
        if not self._idle:
            raise SpecbenchError(
                f"No worker could load the model: {reason}",
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

    def _submit(self, worker: _Worker, job: Job | None = None) -> None:
        """Begin a job; without one, load the model, if need be after Ray started it again."""
        complete = worker.actor.complete.options(max_task_retries=0 if job else -1)
        self._calls[complete.remote(self._opening, job)] = worker, job

    def _next_result(
        self, timeout_s: float | None
    ) -> tuple[_Worker, Job | None, Result | WorkerLost]:
        """Wait until a call ends.

        Raises:
            SpecbenchError: its worker refuses the model, or no call ended within the time.
        """
        done = self._cluster.wait(self._calls, timeout_s)
        if not done:
            raise SpecbenchError(
                f"No worker is left, and none came back within {RESTART_S:.0f} s.",
                "Repair the cluster (`ray status`), then go on with --resume.",
            )
        worker, job = self._calls.pop(done[0])
        try:
            result: Result = self._cluster.get(done[0])
        except WorkerLost as error:
            return worker, job, error
        if result.info is not None:
            self._num_named += 1
            worker.name = f"worker-{self._num_named}"
            self._infos[worker.name] = result.info
        self._idle.append(worker)
        return worker, job, result

    def _next_records(self) -> Sequence[Record]:
        """Wait until a call ends. Returns its records, or error records of a job given up."""
        worker, job, result = self._next_result(None if self._is_working else RESTART_S)
        if not isinstance(result, WorkerLost):
            if result.info is not None:
                self._log.changed()
                self._progress.message(f"{worker.name} has joined.")
            return [replace(record, worker=worker.name) for record in result.records]
        reason = f"{result.message.rstrip('.')}."
        again = f" Another worker repeats {job.sample.prompt.sample_id}." if job else ""
        self._progress.message(f"{worker.name} is lost: {reason}{again}")
        if job is None:
            return ()
        self._submit(worker)
        key = job.sample.key(0)
        self._num_lost[key] += 1
        if self._num_lost[key] < MOST_ATTEMPTS:
            self._waiting.appendleft(job)
            return ()
        return _failed_records(
            self._plan, job, f"{MOST_ATTEMPTS} workers were lost at it: {reason}"
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
