"""Run a plan: write the header, open the backend, warm up, and complete the samples.

A new run gets a header from its plan. A resumed run keeps its header, and measures the records that
are missing. It must have the same inputs and the same machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from specbench.errors import CheckpointError, RunFolderError
from specbench.log.header import RunHeader, Status
from specbench.log.run import Run
from specbench.log.store import RunFolder, read_header, read_run
from specbench.machine.cpu_sampler import CpuSampler
from specbench.measure.base import Backend, Plan, Progress
from specbench.measure.header import make_header, now
from specbench.measure.passes import finished_header, width_after
from specbench.measure.requests import warm_up_requests
from specbench.measure.resume import check_records, resumed_header, without_failed
from specbench.settings.tuned_settings import TUNED
from specbench.types import Record


def run_plan(
    plan: Plan,
    path: Path,
    progress: Progress,
    *,
    given: Sequence[str],
    command: Sequence[str] = (),
    is_forced: bool = False,
    repeats_failed: bool = False,
) -> Run:
    """Measure the records of a plan that are missing, and return the complete run.

    Once the header is written, the folder has a valid run, however this function ends. An exception
    is raised again, after the header has got the status `interrupted` (by the user) or `failed`.

    Args:
        plan: the setup, the prompts and the options of the run.
        path: the run's folder, which is new or has earlier parts of the same plan.
        progress: receives the events and messages.
        given: names of the options that the user gave, for the header.
        command: arguments of the command line, for the header.
        is_forced: True if earlier parts of the run may be from another machine or other versions.
        repeats_failed: True to repeat requests that failed in an earlier part, unless a later turn
            of their chat has an answer (see `without_failed`).
    """
    with RunFolder(path) as folder:
        new_header = make_header(plan, path, given=given, command=command)
        start = _Start(new_header, before=None, done=())
        if folder.has_run():
            start = _resumed_start(
                plan, path, new_header, is_forced=is_forced, repeats_failed=repeats_failed
            )
        backend = plan.setup.open(path, start.before)  # loads or starts nothing yet
        log = _FolderLog(folder, backend, start.header, start.done)
        try:
            folder.write_header(start.header)
            for label in plan.setup.no_checkpoint:  # methods that are left out
                progress.message(f"{label}: no checkpoint for {start.header.model.name}")
            if tuned := _tuned_methods(start.header):  # labels
                progress.message(f"Settings that specbench tune measured here: {', '.join(tuned)}")
            progress.message(f"Loading {plan.setup.title} …")
            with backend, log.sampler:  # loads the model or opens servers, and samples the CPU
                _check_unchanged(plan)  # raises if files were changed while they were loaded
                _measure(plan, log, progress)
            return log.end("complete")
        except BaseException as error:
            with suppress(RunFolderError):  # the folder may be the cause of `error`
                log.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise


class _Start(NamedTuple):
    """The state that a run starts from."""

    header: RunHeader
    """The header to write first."""
    before: RunHeader | None
    """The header of a continued run, whose settings and threads are kept. None for a run without
    records.
    """
    done: Sequence[Record]
    """The records of earlier parts of the run."""


def _resumed_start(
    plan: Plan, path: Path, new: RunHeader, *, is_forced: bool, repeats_failed: bool
) -> _Start:
    """The start of the continued run in the folder `path`.

    `new` is the header that a new run of the plan would have. See `run_plan` for the options.

    Raises:
        RunFolderError: the run does not fit the plan.
    """
    stored = read_run(path)
    done = without_failed(stored.records) if repeats_failed else stored.records
    kept = dataclasses.replace(stored, records=done)
    header = resumed_header(kept, new, is_forced=is_forced)
    check_records(plan, kept)
    if done:
        return _Start(header, before=header, done=done)
    # The run has no record yet: settings and threads are chosen anew.
    return _Start(replace(header, methods=new.methods, threads=None), before=None, done=())


def _tuned_methods(header: RunHeader) -> list[str]:
    """Labels of the methods with settings that `specbench tune` measured on this machine."""
    return [
        label
        for label, method in header.methods.items()
        if method.settings and method.settings.source == TUNED
    ]


@dataclass(frozen=True, slots=True)
class _FolderLog:
    """The folder of a run that is being written."""

    folder: RunFolder
    backend: Backend
    header: RunHeader
    done: Sequence[Record]
    """The records of earlier parts of the run."""
    sampler: CpuSampler = field(default_factory=CpuSampler)

    def append(self, record: Record) -> None:
        self.folder.append(record)

    def changed(self) -> None:
        self.folder.write_header(self.backend.describe(self.done).added_to(self.header))

    def end(self, status: Status) -> Run:
        """Write the header of a run that ends with `status`, and return the stored run.

        The records are read back from the folder. The last header adds to the header at the start
        (`self.header`) what the backend has measured, and how the CPU was used during this part of
        the run. A continued run has several parts.
        """
        stored = read_run(self.folder.path)
        header = self.backend.describe(stored.records).added_to(self.header)
        # `describe` returns None if nothing was sampled. Then the use in an earlier part is kept.
        cpu_use = self.sampler.describe() or self.header.cpu
        if header.workers:  # workers sample their own machines
            cpu_use = None
        header = replace(header, status=status, finished=now(), cpu=cpu_use)
        if status == "complete":  # with --until-ci, adds the numbers of passes and records
            header = finished_header(header, stored.records)
        self.folder.write_header(header)
        return dataclasses.replace(stored, header=read_header(self.folder.path))


def _check_unchanged(plan: Plan) -> None:
    """Raise CheckpointError if files were changed between hashing and loading them."""
    hashed = plan.about
    loaded = plan.setup.describe()
    if (loaded.model, loaded.methods) != (hashed.model, hashed.methods):
        raise CheckpointError(
            f"The files of {hashed.model.name} or of its drafters were changed while they were "
            "loaded.",
            "Wait until they are complete, then start a new run.",
        )


def _measure(plan: Plan, log: _FolderLog, progress: Progress) -> None:
    """Warm up, and measure the missing records. With --until-ci, end once intervals are narrow.

    `log` stores records in the run's folder. `log.done` has the records of earlier parts of the
    run, and `log.header` is the header at the start.
    """
    records_per_pass = plan.num_records // plan.repeats  # `repeats`: passes over all prompts
    num_missing = plan.num_records - len(log.done)
    is_whole_pass = len(log.done) % records_per_pass == 0
    # The width of the speedups' intervals in the earlier parts. It is None without --until-ci, or
    # if these parts ended within a pass.
    width = width_after(log.header, log.done) if is_whole_pass else None
    if not num_missing or (width and width.is_enough):  # as narrow as the user asked
        return
    progress.message("Warming up …")
    log.backend.warm_up(warm_up_requests(plan))
    log.changed()  # writes the present header, in case the run is killed
    progress.started(num_missing)
    try:
        records = [*log.done]
        runner = log.backend.runner(plan, log, progress)  # its `run` yields the missing records
        # `num_done` counts the records of earlier parts too.
        for num_done, record in enumerate(runner.run(log.done), len(log.done) + 1):
            if plan.spec.until_ci:  # otherwise records are not kept, so that memory does not grow
                records.append(record)
            if num_done % records_per_pass != 0:  # within a pass
                continue
            if width := width_after(log.header, records):
                progress.message(str(width).capitalize())
                if width.is_enough:
                    break
    finally:
        progress.finished()
