"""A fake Ray in this process: real workers with fake backends, which can die and come back."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.errors import SpecbenchError
from specbench.measure.base import Sample
from specbench.measure.cluster import worker
from specbench.measure.cluster.messages import WorkerReport
from specbench.measure.cluster.worker import Worker
from specbench.types import Record, RecordKey
from tests.support.backend import Answer, FakeSetup

Given = tuple[Sample, Mapping[RecordKey, Record]]


class ActorDied(Exception):
    """A worker's process is gone."""


class ActorUnplaced(Exception):
    """A worker's machine is gone, and the worker may not move to another."""


class SystemBroke(Exception):
    """Ray itself has failed."""


def sent(value: Any) -> Any:
    """The value as another process would receive it."""
    return pickle.loads(pickle.dumps(value))


@dataclass
class FakeRay:
    """The part of Ray that is used. Calls of workers end in a random order.

    `dies` says if a node dies at a sample, and `has_restarts` if its worker then comes back.
    `changed` maps a worker's number to a change of its report, and `refusals` to the error with
    which it refuses to load. `demands` are the `resources` that each worker got from its node.
    `failures` maps prompt ids to errors of Ray, with which the worker fails from then on. `given`
    are the samples that were handed out, with the records known then. `stored` are this process's
    objects in Ray's store. If there are any when the raylet dies, Ray ends the process.
    """

    methods: Mapping[str, Answer]
    num_workers: int = 3
    dies: Callable[[Sample], bool] = lambda sample: False
    has_restarts: bool = False
    changed: Mapping[int, Callable[[WorkerReport], WorkerReport]] = field(default_factory=dict)
    refusals: Mapping[int, SpecbenchError] = field(default_factory=dict)
    resources: Sequence[dict[str, float]] = ()
    given: list[Given] = field(default_factory=list)
    demands: list[dict[str, Any]] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    here: int = 0
    failures: Mapping[str, type[Exception]] = field(default_factory=dict)
    stored: list[Any] = field(default_factory=list)
    exceptions = SimpleNamespace(
        RayActorError=ActorDied,
        ActorUnschedulableError=ActorUnplaced,
        RayTaskError=SpecbenchError,
        RayError=(SpecbenchError, ActorDied, ActorUnplaced, SystemBroke),
    )
    kill: Callable[[Any], None] = lambda actor: None

    def __post_init__(self) -> None:
        self._draw, self._num_actors = random.Random(0), 0
        on = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = SimpleNamespace(
            get_node_ip_address=lambda: f"10.0.0.{self.here}", scheduling_strategies=on
        )

    def put(self, value: Any) -> Any:
        self.stored.append(value)
        return sent(value)

    def init(self, *, address: str, **options: object) -> None:
        self.addresses.append(address)

    def shutdown(self) -> None: ...
    def nodes(self) -> list[dict[str, Any]]:
        resources = self.resources or [{"GPU": 1.0}] * self.num_workers
        return [
            {"Alive": True, "NodeID": i, "Resources": resources_of_node}
            for i, resources_of_node in enumerate(resources)
        ]

    def remote(self, kind: type[Worker]) -> Any:
        def make(*args: Any, **options: Any) -> FakeActor:
            self._num_actors += 1
            return FakeActor(self, (self._num_actors - 1) % self.num_workers, *args, **options)

        def options(*, max_restarts: int, **wanted: Any) -> Any:
            self.demands.append(wanted)
            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def wait(
        self, refs: list[Any], *, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Any], list[Any]]:
        ready = [ref for ref in refs if ref.is_ready]
        assert ready or timeout is not None, "the driver would wait for ever"
        # Models have been loaded before samples are completed.
        ready.sort(key=lambda ref: self._draw.random() if ref.is_job else -1)
        return ready[:num_returns], []

    def get(self, call: FakeCall | list[FakeCall]) -> Any:
        calls = call if isinstance(call, list) else [call]
        results = [sent(called.result()) for called in calls]
        return results if isinstance(call, list) else results[0]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(
            get_node_id=lambda: f"node-{self.here}", get_accelerator_ids=lambda: {"GPU": ["0"]}
        )


@dataclass(eq=False)
class FakeCall:
    """A call of a worker, which runs when its result is asked for."""

    result: Callable[[], Any]
    is_ready: bool
    is_job: bool


class FakeActor:
    """A worker, as Ray holds it."""

    def __init__(self, ray: FakeRay, number: int, *args: Any, **options: Any) -> None:
        self._ray, self._number, self._is_alive = ray, number, True
        self._failure: type[Exception] | None = None
        self._make = partial(Worker, *args, **options)
        self._worker = self._make()

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> FakeCall:
            has_room = self._is_alive or self._ray.has_restarts
            is_job = name == "complete" and args[1] is not None
            return FakeCall(partial(self._call, name, *map(sent, args)), has_room, is_job)

        call = SimpleNamespace(remote=remote)
        call.options = lambda **_: call
        return call

    def _call(self, name: str, *args: Any) -> Any:
        ray = self._ray
        ray.here = self._number
        job = args[1] if name == "complete" else None
        if name == "complete" and self._number in ray.refusals:
            raise ray.refusals[self._number]
        if job is not None:
            ray.given.append((job.sample, job.stored))
            if failure := ray.failures.get(job.sample.prompt.sample_id):
                ray.failures, self._failure = {}, failure
            if ray.dies(job.sample):
                self._is_alive, self._worker = False, self._make()
                raise ActorDied("the node was killed.")
        if self._failure:
            if ray.stored:
                sys.exit(1)
            raise self._failure("the raylet has died.\nIts log ...")
        is_ready = name == "__ray_ready__"
        result: Any = None if is_ready else getattr(self._worker, name)(*args)
        change = ray.changed.get(self._number) if name == "report" else None
        return change(result) if change else result


def use_ray(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> FakeRay:
    """Replace Ray by a fake one."""
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(worker, "make_setup", lambda spec, is_offline: FakeSetup(ray.methods))
    return ray
