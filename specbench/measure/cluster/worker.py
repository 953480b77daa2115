"""A worker: one backend in a process that Ray started, which completes samples one at a time.

Imports no torch before its environment is set: OpenMP reads it when torch is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from specbench.errors import CheckpointError, SpecbenchError, UserError, describe_error
from specbench.log.backend import WorkerHeader
from specbench.log.machine import Environment
from specbench.machine import environment
from specbench.machine.environment import VARIABLES
from specbench.machine.sampler import CpuSampler
from specbench.machine.threads import wait_briefly
from specbench.measure.backends import make_setup
from specbench.measure.base import BackendInfo, Codec, Plan, Sample, Setup, SetupInfo
from specbench.measure.progress import Lines
from specbench.measure.runner import Runner
from specbench.measure.spec import RunSpec
from specbench.types import Record, Request

OWN_VARIABLES = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
"""Variables that belong to a machine or to Ray's choice of a GPU."""


@dataclass(frozen=True)
class RemoteSetup:
    """A setup on a worker's machine, as a `Setup` describes itself. Nothing is loaded yet.

    `about.environment` is the worker's.
    """

    address: str
    about: SetupInfo
    title: str
    labels: tuple[str, ...]
    no_checkpoint: tuple[str, ...]
    codec: Codec
    context: int | None
    default_budget: int

    def describe(self) -> SetupInfo:
        return self.about


class Opening(NamedTuple):
    """The values that a worker needs to load its model and warm up.

    `about` is the run's setup, which a worker's own must equal.
    """

    about: SetupInfo
    requests: Sequence[Request]


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
        for name in {*VARIABLES} - OWN_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(variables)
        wait_briefly()

    def address(self) -> str:
        """The address of the machine, for messages."""
        import ray

        return str(ray.util.get_node_ip_address())

    def report(self) -> RemoteSetup:
        """The setup on this machine.

        Raises:
            UserError: it cannot be made here; the message names the machine.
        """
        try:
            setup, about = self._setup, self._setup.describe()
        except SpecbenchError as error:
            raise error.at(self.address()) from error
        except Exception as error:
            text = f"A worker on {self.address()} failed: {describe_error(error)}"
            raise UserError(text) from error
        told = filter(None, (*about.warnings, environment.busy_warning()))
        about = replace(about, environment=self._environment, warnings=tuple(told))
        own = {one.name: getattr(setup, one.name) for one in fields(RemoteSetup)[2:]}
        return RemoteSetup(self.address(), about, **own)

    def complete(self, opening: Opening, job: Job | None) -> Result:
        """The records of a sample that are not known yet; without one, the model is loaded only."""
        is_new = self._runner is None
        runner = self._runner = self._runner or self._load(opening)
        info = self._describe() if is_new else None
        known = {record.key: record for record in job.known} if job else {}
        return Result(info, tuple(runner.run_sample(job.sample, known)) if job else ())

    def _load(self, opening: Opening) -> Runner:
        """Load the model and warm up.

        Raises:
            CheckpointError: the model or a drafter has other files here than the run's.
        """
        self._backend = self._stack.enter_context(self._setup.open(Path()))
        self._stack.enter_context(self._sampler)
        own, other = (
            {f"Model {about.model.name}": about.model, **about.methods}
            for about in (self._setup.describe(), opening.about)
        )
        if changed := [name for name in own if own[name] != other.get(name)]:
            raise CheckpointError(
                f"{changed[0]} has other files on {self.address()} than on other machines.",
                "Let every machine have the same files, then go on with --resume.",
            )
        self._backend.warm_up(opening.requests)
        plan = Plan(self._spec, self._setup, (), opening.requests[0].max_new_tokens)
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

    @cached_property
    def _setup(self) -> Setup:
        return make_setup(self._spec, is_offline=self._is_offline)

    @cached_property
    def _environment(self) -> Environment:
        """This machine, without the choice of GPUs, which the place says."""
        found = environment.capture()
        own = {k: v for k, v in found.variables.items() if k != "CUDA_VISIBLE_DEVICES"}
        return msgspec.structs.replace(found, variables=own)
