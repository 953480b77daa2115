"""The seam between a run's driver and its workers, wherever they are.

Values that travel between the two, and the events of workers. Must not know Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from specbench.errors import SpecbenchError
from specbench.log.backend import WorkerHeader
from specbench.log.machine import Environment
from specbench.measure.base import BackendInfo, Codec, Sample, SetupInfo
from specbench.measure.spec import RunSpec
from specbench.types import Record, Request


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place: the address of its machine for messages, and what the header records."""

    address: str
    node: str = ""
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SetupReport:
    """A setup on a worker's machine, as a `Setup` describes itself. Nothing is loaded yet."""

    place: Place
    environment: Environment
    title: str
    labels: tuple[str, ...]
    no_checkpoint: tuple[str, ...]
    codec: Codec
    context: int | None
    default_budget: int
    about: SetupInfo
    remembering: tuple[str, ...] = ()
    """Methods that remember earlier prompts."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The values that a worker needs to load its model and warm up.

    `about` is the run's setup, which a worker's own must equal.
    """

    about: SetupInfo
    max_new_tokens: int
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A sample to complete, with the records of it that are known."""

    sample: Sample
    known: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker as measured so far."""

    header: WorkerHeader
    info: BackendInfo


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has loaded its model and takes jobs."""

    worker: str
    state: WorkerState


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker has completed its job. The new records come in the order in which they ran."""

    worker: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is gone. `error` is what it refused to work with; None if its process died."""

    worker: str
    reason: str
    error: SpecbenchError | None = None


Event: TypeAlias = Ready | Finished | Lost


class Cluster(Protocol):
    """The workers of one run at a time. A worker gets one job at a time."""

    def start(self, spec: RunSpec, *, is_offline: bool) -> Sequence[SetupReport]:
        """Start a run's workers, each with its setup, in place of those of the last run.

        Raises:
            UserError: no worker can be started, or one has not what the run needs.
        """
        ...

    def open(self, opening: Opening, *, num_before: int) -> int:
        """Let all workers load and warm up: each will be ready, or lost. Returns their number.

        They are named from "worker-1" on, after `num_before` workers of earlier parts of the run.
        """
        ...

    def submit(self, worker: str, job: Job) -> None:
        """Give a job to a worker that is ready."""
        ...

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Wait for the next event; None after the timeout, or if nothing is under way.

        A worker that was lost may be started again, and is then ready under another name.
        """
        ...

    def close(self) -> dict[str, WorkerState]:
        """Stop all workers. Returns the state of each that could still tell it."""
        ...
