"""A cluster as the backend of a run: its setup is that of its workers, who must agree.

Knows the cluster's seam and what a run asks of a backend. Must not know Ray.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import msgspec

from specbench.errors import CheckpointError, SpecbenchError, UserError
from specbench.log.header import MethodHeader, RunHeader
from specbench.log.machine import Environment
from specbench.machine import environment
from specbench.measure.base import BackendInfo, Codec, Log, Plan, Progress, SetupInfo
from specbench.measure.cluster.cluster import (
    Cluster,
    Finished,
    Lost,
    Opening,
    Ready,
    SetupReport,
    WorkerState,
)
from specbench.measure.cluster.driver import ClusterRunner
from specbench.measure.cluster.worker import differing_files
from specbench.measure.spec import RunSpec
from specbench.types import Record, Request


def make_cluster_setup(cluster: Cluster, spec: RunSpec, *, is_offline: bool) -> ClusterSetup:
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
        if differing := differing_files(one.about, first.about):
            raise CheckpointError(
                f"{differing} has other files on {one.place.address} than on "
                f"{first.place.address}.",
                "Let every machine have the same files.",
            )
    if first.remembering:
        raise UserError(
            f"{', '.join(first.remembering)} remembers earlier prompts, which --ray hands to "
            "several workers.",
            "Leave out scope=run, or --ray.",
        )
    return ClusterSetup(cluster, tuple(reports))


def _check_versions(report: SetupReport, here: Environment) -> None:
    """Raise UserError if a worker's packages have other versions than those of the driver."""
    pairs = zip(_versions(report.environment), _versions(here), strict=True)
    differences = [
        f"{there[0]} {there[1] or 'not at all'} (here {own[1] or 'not at all'})"
        for there, own in pairs
        if there != own
    ]
    if differences:
        raise UserError(
            f"{report.place.address} has other versions: {', '.join(differences)}.",
            "Install the same versions on every machine of the cluster.",
        )


def _versions(of: Environment) -> list[tuple[str, str | None]]:
    """Packages with their versions. Builds of torch for CPUs and GPUs count as equal."""
    return [
        ("specbench", of.specbench),
        ("its commit", of.git.commit[:12] if of.git else None),
        ("Python", of.python.rpartition(".")[0]),
        ("torch", of.torch.version.partition("+")[0]),
        ("transformers", of.transformers),
    ]


@dataclass(frozen=True)
class ClusterSetup:
    """The setup of a cluster's workers, as they report it."""

    cluster: Cluster
    reports: tuple[SetupReport, ...]

    @property
    def title(self) -> str:
        number = len(self.reports)
        return f"{self._first.title} on {number} worker{'s' * (number > 1)}"

    @property
    def labels(self) -> tuple[str, ...]:
        return self._first.labels

    @property
    def no_checkpoint(self) -> tuple[str, ...]:
        return self._first.no_checkpoint

    @property
    def codec(self) -> Codec:
        return self._first.codec

    @property
    def context(self) -> int | None:
        return self._first.context

    @property
    def default_budget(self) -> int:
        return self._first.default_budget

    def describe(self) -> SetupInfo:
        return self._info

    def open(self, folder: Path, before: RunHeader | None = None) -> ClusterBackend:
        return ClusterBackend(self, num_before=len(before.workers) if before else 0)

    @property
    def _first(self) -> SetupReport:
        return self.reports[0]

    @cached_property
    def _info(self) -> SetupInfo:
        about, environments = self._first.about, [one.environment for one in self.reports]
        machines = {
            one.device_phrase(about.values.get("device", "cpu"), None) for one in environments
        }
        software = {one.software_phrase for one in environments}
        kinds = [", ".join(sorted(found)) for found in (machines, software) if len(found) > 1]
        mixed = [f"The workers differ: {kind}. Tokens/s mix them." for kind in kinds]
        told = [text for one in self.reports for text in one.about.warnings]
        return replace(
            about,
            # Defaults are left out of files by identity, which another process does not keep.
            methods={name: _as_read(one) for name, one in about.methods.items()},
            warnings=tuple(dict.fromkeys((*told, *mixed))),
            environment=environments[0],
        )


def _as_read(method: MethodHeader) -> MethodHeader:
    return msgspec.convert(msgspec.to_builtins(method), MethodHeader)


class ClusterBackend:
    """The workers of a cluster while a run uses them. They load their models in `warm_up`."""

    def __init__(self, setup: ClusterSetup, *, num_before: int) -> None:
        self._setup, self._num_before = setup, num_before
        self._states: dict[str, WorkerState] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._states |= self._setup.cluster.close()

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        """The first worker's part of the header, with the workers themselves.

        A method whose steps any worker had to run eagerly counts as eager.
        """
        if not self._states:
            return BackendInfo()
        warnings = [
            f"{name}: {text}"
            for name, state in self._states.items()
            for text in state.info.warnings
        ]
        infos = [state.info for state in self._states.values()]
        modes = [pair for info in infos for pair in info.execution.items()]
        return replace(
            infos[0],
            execution=dict(sorted(modes, key=lambda pair: pair[1].mode == "eager")),
            gpu=None,
            workers={name: state.header for name, state in self._states.items()},
            warnings=tuple(warnings),
        )

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Let all workers load and warm up.

        Raises:
            SpecbenchError: a worker refused the model, or none is ready.
        """
        cluster, about = self._setup.cluster, self._setup.describe()
        opening = Opening(about, requests[0].max_new_tokens, tuple(requests))
        left, reason = cluster.open(opening, num_before=self._num_before), "no worker is free"
        while left and (event := cluster.next_event()):
            left -= 1
            match event:
                case Ready():
                    self._joined(event)
                case Lost(error=SpecbenchError() as error):
                    raise error
                case Lost():
                    reason = event.reason
                case Finished():
                    raise AssertionError(event)
        if not self._states:
            raise SpecbenchError(
                f"No worker could load the model: {reason}",
                "See `ray logs` or the dashboard, then go on with --resume.",
            )

    def runner(self, plan: Plan, log: Log, progress: Progress) -> ClusterRunner:
        """The driver of the workers.

        A header that is written when a worker joins names all that records can name.
        """

        def joined(event: Ready) -> None:
            self._joined(event)
            log.changed()

        return ClusterRunner(plan, self._setup.cluster, log, progress, deque(self._states), joined)

    def _joined(self, event: Ready) -> None:
        self._states[event.worker] = event.state
