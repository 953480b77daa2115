"""A worker: one backend in a process of its own, which completes samples one at a time.

Knows setups, backends and the runner. Must not know where it runs, nor other workers.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from specbench.errors import CheckpointError
from specbench.log.backend import WorkerHeader
from specbench.log.machine import Environment
from specbench.machine import environment
from specbench.machine.cpu_sampler import CpuSampler
from specbench.measure.base import Plan, Setup, SetupInfo
from specbench.measure.cluster.cluster import Job, Opening, Place, SetupReport, WorkerState
from specbench.measure.progress import Lines
from specbench.measure.runner import Runner
from specbench.measure.spec import RunSpec
from specbench.types import Record


class Worker:
    """Completes samples of a run with a setup's backend. Call it from one thread."""

    def __init__(self, spec: RunSpec, setup: Setup, place: Place) -> None:
        self._spec, self._setup, self._place = spec, setup, place
        self._stack = ExitStack()
        self._sampler = CpuSampler()
        self._done: list[Record] = []

    def report(self) -> SetupReport:
        """The setup on this machine."""
        setup, about = self._setup, self._setup.describe()
        busy = environment.busy_warning()
        return SetupReport(
            place=self._place,
            environment=self._environment,
            title=setup.title,
            labels=setup.labels,
            no_checkpoint=setup.no_checkpoint,
            codec=setup.codec,
            context=setup.context,
            default_budget=setup.default_budget,
            about=replace(about, warnings=(*about.warnings, *([busy] if busy else []))),
            remembering=tuple(label for label, one in about.methods.items() if one.scope == "run"),
        )

    def open(self, name: str, opening: Opening) -> WorkerState:
        """Load the model, warm up, and take jobs under this name.

        Raises:
            CheckpointError: the model or a drafter has other files here than the run's.
        """
        self._name = name
        self._backend = self._stack.enter_context(self._setup.open(Path()))
        self._stack.enter_context(self._sampler)
        about = self._setup.describe()
        if differing := differing_files(about, opening.about):
            raise CheckpointError(
                f"{differing} has other files here than on the other machines of the cluster.",
                "Let every machine have the same files, then go on with --resume.",
            )
        self._backend.warm_up(opening.requests)
        plan = Plan(self._spec, self._setup, (), opening.max_new_tokens)
        runner = self._backend.runner(plan, self, Lines(_ignore))
        assert isinstance(runner, Runner)
        self._stack.enter_context(runner.watch)
        self._runner = runner
        return self.state()

    def append(self, record: Record) -> None:
        """Keep what describes the work; the driver writes the record."""
        self._done.append(replace(record, token_ids=(), text="", token_ends=(), trace=()))

    def changed(self) -> None:
        """Do nothing: the driver writes the header."""

    def complete(self, job: Job) -> tuple[Record, ...]:
        """The records of a sample that are not known yet."""
        known = {record.key: record for record in job.known}
        new = self._runner.run_sample(job.sample, known)
        return tuple(replace(record, worker=self._name) for record in new)

    def state(self) -> WorkerState:
        """This worker as measured so far."""
        info = self._backend.describe(self._done)
        header = WorkerHeader(
            node=self._place.node,
            gpu_ids=self._place.gpu_ids,
            environment=self._environment,
            preparation=info.preparation,
            threads=info.threads,
            roofline=info.roofline,
            gpu=info.gpu,
            cpu=self._sampler.describe(),
        )
        return WorkerState(header, info)

    def close(self) -> WorkerState:
        """Free the model. Returns the last state."""
        self._stack.close()
        return self.state()

    @cached_property
    def _environment(self) -> Environment:
        """This machine, without the choice of GPUs, which the place says."""
        found = environment.capture()
        own = {k: v for k, v in found.variables.items() if k != "CUDA_VISIBLE_DEVICES"}
        return msgspec.structs.replace(found, variables=own)


def differing_files(one: SetupInfo, other: SetupInfo) -> str:
    """The model, or the methods, whose descriptions differ in two setups; empty if none do."""
    if one.model != other.model:
        return f"Model {other.model.name}"
    names = dict.fromkeys((*one.methods, *other.methods))
    return ", ".join(name for name in names if one.methods.get(name) != other.methods.get(name))


def _ignore(text: str) -> None: ...
