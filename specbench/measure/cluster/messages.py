"""Messages between the driver of a cluster and its workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench.errors import UserError
from specbench.log.policies import WORKERS
from specbench.measure.base import BackendInfo, Sample, SetupInfo
from specbench.models.chat import ChatCodec
from specbench.types import Record, RecordKey, Request


@dataclass(frozen=True)
class RemoteSetup:
    """The fields that a run's setup on a cluster and the report of a worker have in common."""

    about: SetupInfo
    """The setup's part of the header, with a machine of the cluster as its environment."""
    title: str
    """The model and where it runs, in words."""
    labels: tuple[str, ...]
    """The methods as records spell them, in table order."""
    no_checkpoint: tuple[str, ...]
    """Requested methods without a checkpoint."""
    codec: ChatCodec
    """Chats to tokens and back."""
    context: int | None
    """Length of the model's context in tokens; None if unknown."""


@dataclass(frozen=True)
class WorkerReport(RemoteSetup):
    """A run's setup on a worker's machine. No model is loaded yet."""

    address: str
    """Address of the machine."""

    def check(self, run: SetupInfo) -> None:
        """Raise UserError unless this machine has the versions and files of the run.

        `run` is the run's setup, with the versions that its machines must have.
        """
        differences = [
            f"{difference.field.removeprefix('environment.')} {difference.first} "
            f"(elsewhere {difference.second})"
            for difference in WORKERS.conflicts(self.about, run)
        ]
        if differences:
            raise UserError(
                f"{self.address} has other versions or files: {', '.join(differences)}.",
                "Install the same versions and files on every machine of the cluster.",
            )


class Opening(NamedTuple):
    """The information that a worker needs to load its model."""

    about: SetupInfo
    """The setup of the run. The worker's setup must be equal to it."""
    requests: Sequence[Request]
    """The requests of the warm-up."""


class Job(NamedTuple):
    """A sample to complete."""

    sample: Sample
    """The prompt with all its turns, for all methods."""
    stored: Mapping[RecordKey, Record]
    """Records of the sample that the run already has."""
    num_lost: int = 0
    """Number of workers that were lost while they completed this sample."""


class Result(NamedTuple):
    """The reply of a worker after a call."""

    info: BackendInfo | None
    """The worker's description in the first result of its process, else None. A worker that Ray
    started again has a new process, and counts as a new worker.
    """
    records: tuple[Record, ...]
    """The new records of the sample, in the order in which they ran."""
