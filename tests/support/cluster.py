"""A cluster in this process: real workers with fake backends, which can die and come back."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.errors import SpecbenchError
from specbench.measure.cluster.cluster import (
    Event,
    Finished,
    Job,
    Lost,
    Opening,
    Place,
    Ready,
    SetupReport,
    WorkerState,
)
from specbench.measure.cluster.worker import Worker
from specbench.measure.spec import RunSpec
from tests.support.backend import Answer, FakeSetup


def sent(value: Any) -> Any:
    """A value as another process gets it."""
    return pickle.loads(pickle.dumps(value))


def never(worker: str, job: Job) -> bool:
    """No worker dies."""
    return False


@dataclass
class FakeCluster:
    """Workers whose events come in a random order.

    `dies` tells if a worker dies at a job, and `has_restarts` if another one then takes its place.
    `changed` maps the number of a worker to a change of its report, `refusals` to the error with
    which it refuses to load.
    """

    methods: Mapping[str, Answer]
    num_workers: int = 3
    dies: Callable[[str, Job], bool] = never
    has_restarts: bool = False
    changed: Mapping[int, Callable[[SetupReport], SetupReport]] = field(default_factory=dict)
    refusals: Mapping[int, SpecbenchError] = field(default_factory=dict)
    given: list[tuple[str, Job]] = field(default_factory=list)

    def start(self, spec: RunSpec, *, is_offline: bool) -> Sequence[SetupReport]:
        self._spec, self._draw = spec, random.Random(spec.seed)
        self._workers: dict[str, Worker] = {}
        self._events: list[Event] = []
        self._fresh = [self._worker(number) for number in range(self.num_workers)]
        return [
            self.changed.get(number, lambda report: report)(sent(worker.report()))
            for number, worker in enumerate(self._fresh)
        ]

    def open(self, opening: Opening, *, num_before: int) -> int:
        self._opening, self._num_named = opening, num_before
        for number, worker in enumerate(self._fresh):
            self._open(worker, self.refusals.get(number))
        return len(self._fresh)

    def submit(self, worker: str, job: Job) -> None:
        self.given.append((worker, job))
        if not self.dies(worker, job):
            self._events.append(Finished(worker, sent(self._workers[worker].complete(sent(job)))))
            return
        del self._workers[worker]
        self._events.append(Lost(worker, "the node was killed"))
        if self.has_restarts:
            self._open(self._worker(len(self.given)))

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        if not self._events:
            assert timeout_s is not None, "the driver would wait for ever"
            return None
        return self._events.pop(self._draw.randrange(len(self._events)))

    def close(self) -> dict[str, WorkerState]:
        return {name: worker.close() for name, worker in self._workers.items()}

    def _worker(self, number: int) -> Worker:
        place = Place(f"10.0.0.{number}", f"node-{number}", ("0",))
        return Worker(self._spec, FakeSetup(self.methods), place)

    def _open(self, worker: Worker, refusal: SpecbenchError | None = None) -> None:
        self._num_named += 1
        name = f"worker-{self._num_named}"
        if refusal:
            self._events.append(Lost(name, refusal.message, refusal))
            return
        self._workers[name] = worker
        self._events.append(Ready(name, sent(worker.open(name, sent(self._opening)))))
