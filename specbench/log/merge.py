"""Runs of the same work joined into one: more prompts, or more passes, from any time or machine.

`Run.pooled` keeps whole runs as units instead.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from msgspec import structs

from specbench.errors import RunFolderError, UserError
from specbench.log import store
from specbench.log.differences import MERGE, in_words
from specbench.log.files import folder_errors, sync
from specbench.log.folders import is_being_written
from specbench.log.header import Origin, PromptsHeader, RunHeader
from specbench.log.run import Run, added_hooks, changed_print, renumbered
from specbench.types import Record

Prompt = tuple[str, str]
"""Task and sample id."""
Offsets = Mapping[Prompt, int]
"""By prompt, the number of passes over it in earlier runs."""

SAME_S = 2e-6
"""Two times that differ by no more are one: servers' times are rounded to microseconds."""


def merged(runs: Sequence[Run]) -> Run:
    """Runs of the same work joined: a prompt that several have gets further passes, in their order.

    Each record keeps its run's id as `origin`.

    Raises:
        UserError: there are fewer than two runs, or they do not fit together. The message
            names every difference.
    """
    if len(runs) < 2:
        raise UserError("One run cannot be merged.", "Give several runs.")
    if problems := [*_problems(runs)]:
        raise UserError(
            "The runs cannot be merged:\n" + "\n".join(f"  {text}" for text in problems),
            "Give runs of the same work, each once. `specbench compare` shows how runs differ.",
        )
    passes: dict[Prompt, int] = defaultdict(int)
    records: list[Record] = []
    every_offset: list[Offsets] = []
    for run in runs:
        offsets = dict(passes)
        every_offset.append(offsets)
        traced = store.read_trace(run.path) if run.path else ()
        traces = {line.key: line.steps for line in traced}
        for record in run.records:
            prompt = record.key.task, record.key.sample_id
            moved = renumbered(record, offsets.get(prompt, 0))
            trace = traces.get(record.key, ())
            origin = record.origin or run.header.id
            worker = record.worker and _worker(record.worker, run.header)
            records.append(replace(moved, trace=trace, origin=origin, worker=worker))
            passes[prompt] = max(passes[prompt], moved.key.repeat + 1)
    return Run(_header(runs, records, every_offset), tuple(records))


def write_run(run: Run, folder: Path) -> None:
    """Write the run into a new folder.

    It is written to a hidden folder beside, and says that it is complete when it is in its
    place. A merge that was killed can be repeated: what it left is replaced.

    Raises:
        RunFolderError: the folder cannot be written, or another merge writes to it.
        UserError: it holds a run or other files already.
    """
    folder = folder.resolve()
    scratch = folder.with_name(f".{folder.name}.merging")
    header = structs.replace(run.header, id=folder.name)
    _make_room(folder, scratch)
    with store.RunFolder(scratch) as opened, folder_errors(folder):
        try:
            opened.write_header(structs.replace(header, status="running"))
            for record in run.records:
                opened.append(record)
            for path in (*scratch.iterdir(), scratch):
                sync(path)
            scratch.rename(folder)
        except BaseException:
            rmtree(scratch, ignore_errors=True)
            raise
        sync(folder.parent)
    with store.RunFolder(folder) as opened:
        opened.write_header(header)


def _make_room(folder: Path, scratch: Path) -> None:
    """Remove what a killed merge left in a folder and in the one beside it.

    Raises:
        RunFolderError: a merge is writing to one of them.
        UserError: the folder holds a run or other files.
    """
    for path in (folder, scratch):
        if is_being_written(path):
            raise RunFolderError(f"Another process is writing to {path}.", "Wait for it to end.")
    with folder_errors(folder):
        if scratch.exists():
            rmtree(scratch)
        if (folder / store.HEADER).exists():
            left = store.read_header(folder)
            if left.status != "running" or not left.origins:
                raise UserError(f"{folder} holds a run already.", "Give another --out.")
            # The header last: it says that the others may go.
            for name in (store.TRACE, store.SAMPLES, f".{store.HEADER}.new", store.HEADER):
                (folder / name).unlink(missing_ok=True)
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} holds other files.", "Give another --out.")


def _problems(runs: Sequence[Run]) -> Iterator[str]:
    """Everything that keeps the runs from being joined, a sentence each."""
    first = runs[0].header
    for number, run in enumerate(runs):
        header = run.header
        if header.status == "running":
            yield f"{header.id} is not finished: merge it when it is."
        if run.missing_text:
            yield f"{header.id} says that it is complete, but {run.missing_text}."
        for other in runs[:number]:
            if _is_measured_twice(run, other):
                yield (
                    f"{header.id} has measurements of {other.header.id}: it is given twice, or one "
                    "is a copy, a part or a pass of the other."
                )
        if any(header.id == other.header.id for other in runs[:number]):
            yield f"Two runs are named {header.id}: rename a folder, so that origins differ."
        for text in in_words(MERGE.conflicts(first, header), first, header):
            yield f"{text}."


def _is_measured_twice(first: Run, second: Run) -> bool:
    """True if two runs share measurements: one is a copy, a part or a pass of the other.

    Files of older versions have no `uid`, and copies can lose it: two records are one if they
    differ in the repeat alone, and both times agree within `SAME_S`. In two honest passes, at
    most one of the times agrees.
    """
    if first.header.uids & second.header.uids:
        return True
    sides = [[*_timed(run)] for run in (first, second)]
    known = defaultdict[object, list[tuple[float, float]]](list)
    for answered, times in sides[0]:
        known[answered].append(times)
    num_shared = sum(
        any(abs(a - c) <= SAME_S and abs(b - d) <= SAME_S for c, d in known.get(answered, ()))
        for answered, (a, b) in sides[1]
    )
    return num_shared >= max(1, min(2, *map(len, sides)))


def _timed(run: Run) -> Iterator[tuple[object, tuple[float, float]]]:
    """The answers of a run that took steps, without their repeat, each with its times."""
    for record in run.records:
        if record.prefill_s is not None and record.decode_s:
            answered = replace(record.key, repeat=0), record.token_ids
            yield answered, (record.prefill_s, record.decode_s)


def _header(
    runs: Sequence[Run], records: Sequence[Record], offsets: Sequence[Offsets]
) -> RunHeader:
    """The header of all: what holds for one machine alone is left to the origins."""
    headers = [run.header for run in runs]
    first = headers[0]
    repeats = 1 + max((record.key.repeat for record in records), default=0)
    columns = {task: title for one in headers for task, title in one.columns.items()}
    values = structs.replace(
        first.spec.values,
        repeats=repeats,
        until_ci=None,
        tasks=tuple(columns),
        **{name: _shared(name, headers) for name in ("limit", "sample")},
    )
    blocks = [
        structs.replace(block, repeat=block.repeat + _block_offset(block.task, run, own))
        for run, own in zip(runs, offsets, strict=True)
        for block in run.header.blocks
    ]
    is_one_machine = len({one.machine_name for one in headers}) == 1
    return structs.replace(
        first,
        uid="",
        status=next((one.status for one in headers if one.status != "complete"), "complete"),
        created=min(one.created for one in headers),
        finished=max((one.finished for one in headers if one.finished), default=None),
        command=(),
        spec=structs.replace(first.spec, values=values, asked=values),
        num_records=len(records),
        columns=columns,
        prompts=tuple(_prompts([one for h in headers for one in h.prompts], records)),
        roofline=first.roofline if is_one_machine else None,
        preparation=None, gpu=None, cpu=None,
        segments=(), hooks=added_hooks(headers), weights_print=changed_print(headers),
        blocks=tuple(blocks),
        warnings=tuple(dict.fromkeys(_warnings(headers))),
        origins=tuple(origin for run in runs for origin in _origins(run)),
        workers={
            _worker(name, one): about for one in headers for name, about in one.workers.items()
        },
    )  # fmt: skip


def _worker(name: str, header: RunHeader) -> str:
    """The name of a run's worker in the merged run: every run has a worker-1."""
    return name if header.origins else f"{header.id}/{name}"


def _shared(name: str, headers: Sequence[RunHeader]) -> int | None:
    """A value of the specification that all runs have; None if they differ."""
    found = {getattr(one.spec.values, name) for one in headers}
    return found.pop() if len(found) == 1 else None


def _block_offset(task: str, run: Run, offsets: Offsets) -> int:
    """The passes before a block of a server. Its prompts were measured in one go.

    Raises:
        UserError: its prompts have different numbers of passes.
    """
    keys = {(one.key.task, one.key.sample_id) for one in run.records if one.key.task == task}
    found = {offsets.get(key, 0) for key in keys}
    if len(found) > 1:
        raise UserError(
            f"{run.header.id} has prompts of {task} that earlier runs have, and others: the blocks "
            "of a server cannot be split.",
            "Merge runs of the same prompts, or of different ones.",
        )
    return found.pop() if found else 0


def _prompts(sets: Sequence[PromptsHeader], records: Sequence[Record]) -> Iterator[PromptsHeader]:
    """One part a task. The hash of several sets is made from theirs."""
    by_task: dict[str, dict[str, PromptsHeader]] = defaultdict(dict)
    for one in sets:
        by_task[one.task][one.sha256] = one
    for task, found in by_task.items():
        largest = max(found.values(), key=lambda one: one.num_prompts)
        ids = {record.key.sample_id for record in records if record.key.task == task}
        if len(ids) <= largest.num_prompts:
            yield largest
            continue
        categories: dict[str, tuple[str, ...]] = {}
        for one in found.values():
            for name, samples in one.categories.items():
                categories[name] = tuple(dict.fromkeys((*categories.get(name, ()), *samples)))
        sha256 = hashlib.sha256("".join(sorted(found)).encode()).hexdigest()
        yield structs.replace(largest, num_prompts=len(ids), sha256=sha256, categories=categories)


def _warnings(headers: Sequence[RunHeader]) -> Iterator[str]:
    """Each run's own warnings by its name, then the differences between runs."""
    first = headers[0]
    for one in headers:
        yield from (f"{one.id}: {text}" for text in one.warnings)
        if one.cpu and not one.servers and (busy := one.cpu.others_warning):
            yield f"{one.id}: {busy}"
    for one in headers[1:]:
        for text in in_words(MERGE.cautions(first, one), first, one):
            yield f"Merged runs differ in {text}."


def _origins(run: Run) -> Sequence[Origin]:
    """The run as an origin; the origins of a run that is merged itself."""
    one = run.header
    if one.origins:
        return one.origins
    values = {name: getattr(one, name) for name in Origin.__struct_fields__}
    return [Origin(**values | {"num_records": len(run.records)})]
