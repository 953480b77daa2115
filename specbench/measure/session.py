"""A run from plan to records: header, backend, warm-up, samples.

The header of a run that is about to start, from its plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

from specbench.errors import CheckpointError, RunFolderError, few
from specbench.log.header import RunHeader, Status
from specbench.log.run import Run
from specbench.log.spec import SpecHeader
from specbench.log.store import RunFolder, read_header, read_run
from specbench.machine import environment
from specbench.machine.sampler import CpuSampler
from specbench.measure.base import Backend, Plan, Progress, loads_of_run
from specbench.measure.passes import finished_header, width_after
from specbench.measure.requests import warm_up_requests
from specbench.measure.settings import is_tuned
from specbench.types import Record

PHASES_WARNING = (
    "The phases of every step were timed (--phases), which slows steps down: this run shows where "
    "a step's time goes, and is not evidence of speed."
)


def make_header(
    plan: Plan, path: Path, *, given: Sequence[str], command: Sequence[str]
) -> RunHeader:
    """The header of a plan that runs in a folder for the first time.

    Args:
        plan: what runs.
        path: the run's folder.
        given: options that the user gave.
        command: arguments of the command line.
    """
    about = plan.about
    columns = {one.task.name: one.task.title for one in plan.prompt_sets}
    values = replace(
        plan.spec,
        methods=plan.setup.labels,
        tasks=tuple(columns),
        concurrency=tuple(load.concurrency for load in loads_of_run(plan.spec) if load.concurrency),
        max_new_tokens=plan.max_new_tokens,
        **about.values,
    )
    phases = PHASES_WARNING if plan.spec.phases else None
    busy = None if about.environment else environment.busy_warning()
    warnings = (control_warning(plan), busy, phases)
    return RunHeader(
        id=path.resolve().name,
        uid=uuid4().hex,
        status="running",
        created=now(),
        command=tuple(command),
        spec=SpecHeader(values=values, asked=plan.spec, given=tuple(sorted(given))),
        environment=about.environment or environment.capture(),
        warnings=(*about.warnings, *(text for text in warnings if text)),
        model=about.model,
        methods=about.methods,
        no_checkpoint=plan.setup.no_checkpoint,
        num_records=plan.num_records,
        columns=columns,
        prompts=tuple(one.describe() for one in plan.prompt_sets),
    )


def control_warning(plan: Plan) -> str | None:
    """A sentence about prompts whose text has control tokens; None without any."""
    found = {
        prompt.sample_id: token
        for prompts in plan.prompts.values()
        for prompt in prompts
        for turn in prompt.turns
        for token in plan.setup.codec.control_tokens(turn)
    }
    if not found:
        return None
    shown = few([f"{name} ({token})" for name, token in found.items()])
    return (
        f"The text of {shown} has special tokens, which the model reads as control "
        "tokens, not as text. Use a chat template, or leave these prompts out."
    )


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_plan(
    plan: Plan,
    path: Path,
    progress: Progress,
    *,
    given: Sequence[str],
    command: Sequence[str] = (),
    is_forced: bool = False,
) -> Run:
    """Run everything that the folder lacks. It holds a valid run however this ends.

    Args:
        plan: what to run.
        path: the run's folder, new or with a part of the same plan.
        progress: receives the events.
        given: options that the user gave, for the header.
        command: arguments of the command line, for the header.
        is_forced: a part of the same plan may be from another machine or other versions.

    An interrupt leaves the status `interrupted` and is raised again; an error leaves `failed`.
    """
    with RunFolder(path) as folder:
        header = new = make_header(plan, path, given=given, command=command)
        before: RunHeader | None = None
        done: Sequence[Record] = ()
        if folder.has_run():
            from specbench.measure.resume import check_records, resumed_header

            stored = read_run(path)
            header = before = resumed_header(stored, new, is_forced=is_forced)
            check_records(plan, stored)
            done = stored.records
            if not done:  # it had no sample yet: settings and threads are chosen anew
                header, before = replace(header, methods=new.methods, threads=None), None
        backend = plan.setup.open(path, before)
        log = _FolderLog(folder, backend, header, done)
        try:
            folder.write_header(header)
            for label in plan.setup.no_checkpoint:
                progress.message(f"{label}: no checkpoint for {header.model.name}")
            if tuned := [k for k, one in header.methods.items() if is_tuned(one)]:
                progress.message(f"Settings that specbench tune measured here: {', '.join(tuned)}")
            progress.message(f"Loading {plan.setup.title} …")
            with backend, log.sampler:
                _check_unchanged(plan)
                _run(plan, log, progress)
            return log.end("complete")
        except BaseException as error:
            with suppress(RunFolderError):  # the folder itself may be the first error's cause
                log.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise


@dataclass(frozen=True, slots=True)
class _FolderLog:
    """The folder of a run that is being written, by a backend, after the records `done`."""

    folder: RunFolder
    backend: Backend
    header: RunHeader
    done: Sequence[Record]
    sampler: CpuSampler = field(default_factory=CpuSampler)

    def append(self, record: Record) -> None:
        self.folder.append(record)

    def changed(self) -> None:
        self.folder.write_header(self.backend.describe(self.done).added_to(self.header))

    def end(self, status: Status) -> Run:
        """Write the last header; the only time that the run's own records are read."""
        stored = read_run(self.folder.path)
        ended = self.backend.describe(stored.records).added_to(self.header)
        cpu = self.sampler.describe() or self.header.cpu
        cpu = None if ended.workers else cpu  # workers run elsewhere, and are sampled there
        ended = replace(ended, status=status, finished=now(), cpu=cpu)
        if status == "complete":
            ended = finished_header(ended, stored.records)
        self.folder.write_header(ended)
        return dataclasses.replace(stored, header=read_header(self.folder.path))


def _check_unchanged(plan: Plan) -> None:
    """Raise CheckpointError if files were changed between hashing and loading them."""
    now, model = plan.setup.describe(), plan.about.model
    if (now.model, now.methods) != (model, plan.about.methods):
        raise CheckpointError(
            f"The files of {model.name} or of its drafters were changed while they were loaded.",
            "Wait until they are complete, then start a new run.",
        )


def _run(plan: Plan, log: _FolderLog, progress: Progress) -> None:
    pass_size = plan.num_records // plan.repeats
    missing = plan.num_records - len(log.done)
    width = width_after(log.header, log.done) if len(log.done) % pass_size == 0 else None
    if not missing or (width and width.is_enough):
        return
    progress.message("Warming up …")
    log.backend.warm_up(warm_up_requests(plan))
    log.changed()  # for a run that is killed
    progress.started(missing)
    try:
        records = [*log.done]
        runner = log.backend.runner(plan, log, progress)
        for count, record in enumerate(runner.run(log.done), len(log.done) + 1):
            if plan.spec.until_ci:  # else a run of any length needs no more memory
                records.append(record)
            width = width_after(log.header, records) if count % pass_size == 0 else None
            if width:
                progress.message(str(width).capitalize())
            if width and width.is_enough:
                break
    finally:
        progress.finished()
