"""A run from plan to records: header, backend, warm-up, samples."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from specbench.errors import CheckpointError, RunFolderError
from specbench.log.header import RunHeader, Status
from specbench.log.run import Run
from specbench.log.store import RunFolder, read_run
from specbench.machine.cpu_sampler import CpuSampler
from specbench.machine.pauses import PauseWatch
from specbench.measure.base import Backend
from specbench.measure.header import make_header, now
from specbench.measure.passes import finished_header, until_width
from specbench.measure.pauses import PauseCheck
from specbench.measure.plan import Plan
from specbench.measure.progress import Progress
from specbench.measure.requests import count_records, warm_up_requests
from specbench.measure.resume import check_keys, check_memory, num_missing, resumed_header
from specbench.types import Record


def run_plan(
    plan: Plan,
    path: Path,
    progress: Progress,
    *,
    given: Sequence[str],
    command: Sequence[str] = (),
    backend: Backend | None = None,
    is_forced: bool = False,
) -> Run:
    """Run everything that the folder lacks. It holds a valid run however this ends.

    Args:
        plan: what to run.
        path: the run's folder, new or with a part of the same plan.
        progress: receives the events.
        given: options that the user gave, for the header.
        command: arguments of the command line, for the header.
        backend: completes the requests; by default the one that the plan's setup opens.
        is_forced: a part of the same plan may be from another machine or other versions.

    An interrupt leaves the status `interrupted` and is raised again; an error leaves `failed`.
    """
    with RunFolder(path) as folder:
        header = new = make_header(plan, path, given=given, command=command)
        before = None
        if folder.has_run():
            stored = read_run(path)
            header = before = resumed_header(stored, new, is_forced=is_forced)
            check_keys(plan, stored)
            check_memory(plan, stored)
        backend = backend or plan.setup.open(path, before)
        sampler = CpuSampler()

        def end(status: Status) -> None:
            records = read_run(path).records
            ended = backend.describe(records).added_to(header)
            cpu = sampler.describe() or header.cpu
            cpu = None if ended.workers else cpu  # they work elsewhere, and are sampled there
            ended = replace(ended, status=status, finished=now(), cpu=cpu)
            if status == "complete":
                ended = finished_header(ended, records)
            folder.write_header(ended)

        try:
            folder.write_header(header)
            for label in plan.setup.no_checkpoint:
                progress.message(f"{label}: no checkpoint for {header.model.name}")
            progress.message(f"Loading {plan.setup.title} …")
            with backend, sampler:
                _check_unchanged(plan, new)
                _run(plan, backend, folder, progress, header=header)
            end("complete")
        except BaseException as error:
            with suppress(RunFolderError):  # the folder itself may be the first error's cause
                end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
    return read_run(path)


def _check_unchanged(plan: Plan, header: RunHeader) -> None:
    """Raise CheckpointError if files were changed between hashing and loading them."""
    about = plan.setup.describe()
    if (about.model, about.methods) != (header.model, header.methods):
        raise CheckpointError(
            f"The files of {header.model.name} or of its drafters were changed while they were "
            "loaded.",
            "Wait until they are complete, then start a new run.",
        )


def _run(
    plan: Plan, backend: Backend, folder: RunFolder, progress: Progress, *, header: RunHeader
) -> None:
    done = read_run(folder.path).records
    missing, is_enough = num_missing(plan, done), until_width(header)
    pass_size = count_records(plan) // plan.repeats
    if not missing or (len(done) % pass_size == 0 and is_enough(done)):
        return
    progress.message("Warming up …")
    backend.warm_up(warm_up_requests(plan))

    def write_header() -> None:
        folder.write_header(backend.describe(done).added_to(header))

    write_header()  # for a run that is killed
    progress.started(missing)
    try:
        with PauseWatch() as watch:
            pauses = PauseCheck(watch.take)
            runner = backend.runner(plan, folder, progress, pauses=pauses, block_done=write_header)
            records = [*done]
            for count, record in enumerate(runner.run(done), len(done) + 1):
                if plan.spec.until_ci:  # else a run of any length needs no more memory
                    records.append(record)
                if count % pass_size == 0 and is_enough(records):
                    break
    finally:
        progress.finished()


def failures(records: Sequence[Record]) -> list[Record]:
    """The records of samples that failed."""
    return [record for record in records if not record.is_ok]
