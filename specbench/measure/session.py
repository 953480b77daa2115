"""A run from plan to records: folder, header, backend, warm-up, samples.

The folder is new, or that of a run to resume.

A new run gets a header from its plan. A run that is resumed keeps its header, must have the
same inputs and the same machine, and measures the records that are missing.
"""

import dataclasses
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from msgspec.structs import asdict, replace

from specbench.errors import CheckpointError, RunFolderError, few
from specbench.log.differences import RESUME, Difference
from specbench.log.folders import is_being_written, list_runs, run_folder
from specbench.log.header import RunHeader, Segment, Status
from specbench.log.methods import MethodHeader
from specbench.log.options import options
from specbench.log.run import Run
from specbench.log.spec import SpecHeader, SpecValues
from specbench.log.store import HEADER, RunFolder, read_header, read_run
from specbench.machine import environment
from specbench.machine.sampler import CpuSampler
from specbench.measure.base import Backend, Plan, Progress, loads_of_run
from specbench.measure.plan import SetupMaker, finished_header, width_after
from specbench.measure.requests import warm_up_requests
from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model
from specbench.registry import expand_groups
from specbench.settings.files import TUNED
from specbench.settings.run_method import kept_options
from specbench.types import Record

PHASES_WARNING = (
    "The phases of every step were timed (--phases), which slows steps down: this run shows where "
    "a step's time goes, and is not evidence of speed."
)


class ChosenRun(NamedTuple):
    """A run to start or to resume: its folder, its values, and which of them were given."""

    path: Path
    spec: RunSpec
    given: tuple[str, ...]


def new_run(spec: RunSpec, given: Collection[str], output: Path | None, root: Path) -> ChosenRun:
    """A run in the folder `output`, or in a new one in `root`.

    Raises:
        RunFolderError: the folder has a run already, or cannot be written.
    """
    if output is None:
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        is_here = Path(spec.model).expanduser().exists()
        name = find_model(spec.model).title if is_here else Path(spec.model).name
        output = root / f"{now}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}"
    elif (output / HEADER).exists():
        raise RunFolderError(
            f"{output} holds a run already.",
            "Go on with it by --resume, or give another --output.",
        )
    above = next(one for one in (output, *output.absolute().parents) if os.access(one, os.F_OK))
    if not os.access(f"{above}/.", os.W_OK | os.X_OK):
        raise RunFolderError(f"{above} cannot be written to.", "Choose another --output.")
    return ChosenRun(output, spec, tuple(given))


def claim_folder(path: Path) -> Path:
    """Make a new run's folder, under another name if a run of the same second has this one."""
    for number in count(1):
        claimed = path.with_name(f"{path.name}-{number}") if number > 1 else path
        with suppress(FileExistsError):
            claimed.mkdir(parents=True)
            return claimed
    raise AssertionError


def resumed_run(
    spec: RunSpec, given: Collection[str], output: Path | None, root: Path
) -> ChosenRun:
    """The run in the folder `output`, or the newest unfinished one in `root`, with its own options.

    Only the options of `spec` in `given` are compared: they must match the run's.

    Raises:
        RunFolderError: there is no run to resume, or the given options are not the run's.
    """
    path = run_folder(output) if output else _newest_unfinished(spec, given, root)
    header = read_header(path)
    if differences := _differences(spec, given, header):
        raise RunFolderError(
            f"The run in {path} has other options: {'; '.join(differences)}.",
            "Leave them out: --resume takes those of the run. Or start a new run without --resume.",
        )
    asked = RunSpec(**asdict(header.spec.asked or header.spec.values))
    return ChosenRun(path, asked, tuple(sorted({*header.spec.given, *given})))


def _newest_unfinished(spec: RunSpec, given: Collection[str], root: Path) -> Path:
    for path, header in list_runs(root).items():
        if not isinstance(header, RunHeader) or header.status == "complete":
            continue
        if not _differences(spec, given, header) and not is_being_written(path):
            return path
    raise RunFolderError(
        f"{root} has no unfinished run with these options.",
        "See `specbench list runs`, and name one with --output DIR --resume.",
    )


def earlier_runs(plan: Plan, root: Path) -> Iterator[tuple[Path, RunHeader]]:
    """The complete runs of a plan's model on its device, the newest first."""
    about = plan.about
    for path, header in list_runs(root).items():
        if isinstance(header, RunHeader) and header.status == "complete":
            device = about.values.get("device", plan.spec.device)
            if (header.model.label, header.spec.values.device) == (about.model.label, device):
                yield path, header


def expected_seconds(plan: Plan, root: Path) -> float | None:
    """Seconds that a plan takes, by the newest run that was made in one go; None without one."""
    for _, header in earlier_runs(plan, root):
        if header.finished and header.num_records and not header.segments:
            began, ended = map(datetime.fromisoformat, (header.created, header.finished))
            budget = header.spec.values.max_new_tokens or plan.max_new_tokens
            work = plan.num_records * plan.max_new_tokens / (header.num_records * budget)
            return max(1.0, (ended - began).total_seconds() * work)
    return None


def _differences(spec: RunSpec, given: Collection[str], header: RunHeader) -> list[str]:
    """The given options that agree neither with what the run was asked nor with what it did."""
    asked, done = header.spec.asked or header.spec.values, header.spec.values
    found = []
    for option in options(SpecValues):
        name = option.name
        mine, theirs, ran = (_value(one, name) for one in (spec, asked, done))
        if {name, option.parameter} & {*given} and mine not in (theirs, ran):
            found.append(f"{name} is {theirs!r} there and {mine!r} here")
    return found


def _value(values: SpecValues, name: str) -> Any:
    """A value of a spec; methods one by one, however they were given."""
    return expand_groups(values.methods) if name == "methods" else getattr(values, name)


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
        concurrency=tuple(filter(None, (one.concurrency for one in loads_of_run(plan.spec)))),
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


def resumed_header(stored: Run, new: RunHeader, *, is_forced: bool) -> RunHeader:
    """The header of a stored run that goes on, where a new run would have the header `new`.

    Everything is as it was at first. With `is_forced`, another machine or other versions are
    kept as a segment of the run.

    Raises:
        RunFolderError: the inputs differ, or without `is_forced` the machine or the versions.
    """
    before = stored.header
    if before.origins:
        raise RunFolderError(
            f"The run in {stored.path} was merged from {len(before.origins)} runs.",
            "Go on with one of those, and merge them again.",
        )
    machine = before.segments[-1].environment if before.segments else before.environment
    latest = replace(before, environment=machine)
    methods = {
        label: _as_before(one, before.methods.get(label)) for label, one in new.methods.items()
    }
    new = replace(new, methods=methods)
    if inputs := RESUME.conflicts(latest, new):
        raise RunFolderError(
            f"The run in {stored.path} had other inputs: {_listed(inputs)}.",
            "Restore them, or start a new run without --resume.",
        )
    segments, warnings = before.segments, before.warnings
    if cautions := RESUME.cautions(latest, new):
        what = f"on another machine or with other versions: {_listed(cautions)}"
        if not is_forced:
            raise RunFolderError(
                f"The run in {stored.path} was measured {what}.",
                "Restore them, start a new run without --resume, or go on with --force: reports "
                "then warn.",
            )
        count = len(stored.records)
        segments += (Segment(count, new.created, new.environment),)
        warnings += (
            f"Records after the first {count} were measured {what} (--resume --force). Totals mix "
            "both. Measure anew on one machine before you use them.",
        )
    return replace(
        before,
        id=new.id,
        status="running",
        finished=None,
        segments=segments,
        warnings=tuple(dict.fromkeys((*warnings, *new.warnings))),
    )


def _as_before(new: MethodHeader, before: MethodHeader | None) -> MethodHeader:
    """The method with the settings that were chosen when its run began."""
    if before is None:
        return new
    kept = kept_options(before, new.settings)
    return replace(new, options={**new.options, **kept}, settings=before.settings)


def check_records(plan: Plan, stored: Run) -> None:
    """Raise RunFolderError if the run has records that its plan does not make.

    Also if a method remembers earlier prompts (`scope=run`): that memory is lost.
    """
    planned = set(plan.keys)
    if unknown := [one.key for one in stored.records if one.key not in planned]:
        key = unknown[0]
        raise RunFolderError(
            f"The run in {stored.path} has {len(unknown)} records that are not part of it, such as "
            f"{key.method} on {key.sample_id!r} (turn {key.turn}, repeat {key.repeat}, "
            f"temperature {key.temperature:g}).",
            "Delete these lines of samples.jsonl, or start a new run without --resume.",
        )
    methods = [name for name, one in stored.header.methods.items() if one.scope == "run"]
    if methods and stored.records and len(stored.records) < plan.num_records:
        raise RunFolderError(
            f"The run in {stored.path} cannot go on: {', '.join(methods)} remembers earlier "
            "prompts, and that memory ended with the first part of the run.",
            "Start a new run without --resume.",
        )


def _listed(differences: Sequence[Difference]) -> str:
    return few([f"{one.field} was {one.first} and is {one.second}" for one in differences], 4)


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def setup_maker(address: str) -> Iterator[SetupMaker | None]:
    """The maker of setups in the Ray cluster at an address, until the block ends; else None.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """
    if not address:
        yield None
        return
    from specbench.measure.cluster.connection import connected
    from specbench.measure.cluster.setup import make_cluster_setup

    with connected(address) as ray:
        yield partial(make_cluster_setup, ray)


def run_plan(
    plan: Plan,
    path: Path,
    progress: Progress,
    *,
    given: Sequence[str],
    command: Sequence[str] = (),
    is_forced: bool = False,
) -> Run:
    """Measure the records that are missing. The folder holds a valid run however this ends.

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
            sources = {k: one.settings.source for k, one in header.methods.items() if one.settings}
            if tuned := [label for label, source in sources.items() if source == TUNED]:
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
