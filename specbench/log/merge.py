"""Merge runs of the same work, from any time or machine, into one with more prompts or passes.

`Run.pooled` does not mix runs, but keeps each run as a unit.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from msgspec import structs

from specbench.errors import RunFolderError, UserError
from specbench.log import store
from specbench.log.backend import BlockHeader
from specbench.log.difference import in_words
from specbench.log.files import REPEAT, folder_errors, scratch_files, sync
from specbench.log.folders import is_being_written
from specbench.log.header import Origin, PromptsHeader, RunHeader
from specbench.log.merge_problems import merge_problems
from specbench.log.policies import MERGE
from specbench.log.run import Run, added_hooks, changed_print, joint_status, renumbered
from specbench.types import Record


class Prompt(NamedTuple):
    """A prompt of a run."""

    task: str
    """Name of the task."""
    sample_id: str
    """Id of the prompt."""


Offsets = Mapping[Prompt, int]
"""Prompt -> the number of passes over it in earlier runs."""


def merged(runs: Sequence[Run]) -> Run:
    """Return one run with the records of several runs of the same work.

    If several runs have a prompt, the passes over the prompt (`repeat` of a record's key, from 0)
    are numbered consecutively over these runs. Each record keeps the id of its run as `origin`.

    Raises:
        UserError: a run is imported, there are fewer than two runs, or they do not fit together.
            The last message names every difference.
    """
    for run in runs:
        run.header.refuse_import("merged")  # raises for a run of another tool
    if len(runs) < 2:
        raise UserError("One run cannot be merged.", "Give several runs.")
    problems = [*merge_problems(runs)]  # sentences
    if problems:
        raise UserError(
            "The runs cannot be merged:\n" + "\n".join(f"  {problem}" for problem in problems),
            "Give runs of the same work, each once. `specbench compare` shows how runs differ.",
        )
    num_passes: dict[Prompt, int] = defaultdict(int)  # prompt -> passes in the runs so far
    records: list[Record] = []
    offsets_of_runs: list[Offsets] = []
    for run in runs:
        offsets = dict(num_passes)  # prompt -> passes in the runs before this one
        offsets_of_runs.append(offsets)
        trace_lines = store.read_trace(run.path) if run.path else ()  # None if not from a folder
        traces = {line.key: line.steps for line in trace_lines}  # key -> steps with draft trees
        for record in run.records:
            prompt = _prompt_of(record)
            renumbered_record = renumbered(record, offsets.get(prompt, 0))
            merged_record = replace(
                renumbered_record,
                trace=traces.get(record.key, ()),
                origin=record.origin or run.header.id,
                # Empty if the record is not from a worker of a cluster.
                worker=_worker(record.worker, run.header) if record.worker else "",
            )
            records.append(merged_record)
            num_passes[prompt] = max(num_passes[prompt], merged_record.key.repeat + 1)
    return Run(_header(runs, records, offsets_of_runs), tuple(records))


def _prompt_of(record: Record) -> Prompt:
    return Prompt(record.key.task, record.key.sample_id)


def write_run(run: Run, folder: Path) -> None:
    """Write a merged or converted run into a new folder, whose name becomes the run's id.

    The files are written to a hidden scratch folder, with the status "running". The scratch folder
    is renamed to the new folder, and then the header gets the run's status. So a killed command can
    be repeated, which replaces the files that it left. A `RunFolder` locks its folder.

    Raises:
        RunFolderError: the folder cannot be written, or another process writes to it.
        UserError: the folder already has a run or other files.
    """
    folder = folder.resolve()
    scratch = folder.with_name(f".{folder.name}.merging")
    header = structs.replace(run.header, id=folder.name)
    _make_room(folder, scratch)
    # `folder_errors` turns errors of the disk into errors that name `folder` and the option, and
    # whose hint is to repeat the command.
    with store.RunFolder(scratch) as run_folder, folder_errors(folder, "--out", REPEAT):
        try:
            run_folder.write_header(structs.replace(header, status="running"))
            for record in run.records:
                run_folder.append(record)
            for path in (*scratch.iterdir(), scratch):
                sync(path)  # wait until the file, or the names in the folder, are on the disk
            scratch.rename(folder)
        except BaseException:
            rmtree(scratch, ignore_errors=True)
            raise
        sync(folder.parent)
    with store.RunFolder(folder) as run_folder:
        run_folder.write_header(header)


def _make_room(folder: Path, scratch: Path) -> None:
    """Remove the files that a killed command left in its folder and its scratch folder.

    HEADER (run.json), SAMPLES and TRACE are the names of a run's files.

    Raises:
        RunFolderError: a process is writing to one of the folders, or they cannot be written.
        UserError: the folder has a run or other files.
    """
    for path in (folder, scratch):
        if is_being_written(path):
            raise RunFolderError(f"Another process is writing to {path}.", "Wait for it to end.")
    with folder_errors(folder, "--out", REPEAT):
        if scratch.exists():
            rmtree(scratch)
        if (folder / store.HEADER).exists():
            stored_header = store.read_header(folder)
            # Only merged runs have `origins`, the runs that they were merged from, and only
            # converted runs are `imported`.
            is_copied = stored_header.origins or stored_header.imported
            if not is_copied or stored_header.status != "running":
                raise UserError(f"{folder} holds a run already.", "Give another --out.")
            # The header is removed last: as long as it exists, it shows that a killed command
            # left these files. `scratch_files` are versions of the header that were not renamed.
            files = [folder / store.TRACE, folder / store.SAMPLES]
            for file in (*files, *scratch_files(folder / store.HEADER), folder / store.HEADER):
                file.unlink(missing_ok=True)
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} holds other files.", "Give another --out.")


def _header(
    runs: Sequence[Run], records: Sequence[Record], offsets_of_runs: Sequence[Offsets]
) -> RunHeader:
    """The first header, with the tasks, passes, blocks, workers and warnings of all runs. `origins`
    has the command, machine, GPU and processor of each run. The first run's `environment` is kept,
    and its `roofline` if all machines have the same name.

    `records` are the merged run's. `offsets_of_runs` has prompt -> passes in earlier runs, per run.
    """
    headers = [run.header for run in runs]
    first_header = headers[0]
    # Task -> title of its column in tables.
    columns = {task: title for header in headers for task, title in header.columns.items()}
    # `limit` or `sample` is the number of prompts per task; `limit_order` says which are chosen.
    limit = _shared({header.spec.values.limit for header in headers})
    is_one_order = len({header.spec.values.limit_order for header in headers}) == 1
    spec_values = structs.replace(
        first_header.spec.values,
        repeats=1 + max((record.key.repeat for record in records), default=0),  # passes
        until_ci=None,
        tasks=tuple(columns),
        limit=limit if is_one_order else None,
        sample=_shared({header.spec.values.sample for header in headers}),  # None if they differ
    )
    blocks: list[BlockHeader] = []  # a block is the requests that a server completed together
    for run, offsets in zip(runs, offsets_of_runs, strict=True):
        for block in run.header.blocks:
            num_earlier_passes = _block_offset(block.task, run, offsets)
            blocks.append(structs.replace(block, repeat=block.repeat + num_earlier_passes))
    workers = {  # name of a cluster's process in the merged run -> its description
        _worker(name, header): worker
        for header in headers
        for name, worker in header.workers.items()
    }
    is_one_machine = len({header.machine_name for header in headers}) == 1
    end_times = [header.finished for header in headers if header.finished]  # ISO 8601
    return structs.replace(
        first_header,
        uid="",  # the random name of a single measurement
        status=joint_status(headers),
        created=min(header.created for header in headers),
        finished=max(end_times, default=None),
        command=(),
        spec=structs.replace(first_header.spec, values=spec_values, asked=spec_values),
        segments=(),  # resumptions on another machine
        warnings=tuple(dict.fromkeys(_warnings(headers))),
        num_records=len(records),
        columns=columns,
        prompts=tuple(_prompts(headers, records)),
        preparation=None,  # times before the first sample
        roofline=first_header.roofline if is_one_machine else None,
        hooks=added_hooks(headers),  # seconds of methods' untimed work
        weights_print=changed_print(headers),  # fingerprints: those that changed, if any did
        gpu=None,
        cpu=None,
        energy=(),
        blocks=tuple(blocks),
        origins=tuple(origin for run in runs for origin in _origins(run)),
        workers=workers,
    )


def _worker(name: str, header: RunHeader) -> str:
    """The worker's name in the merged run, with the run's id: every run has a worker-1."""
    return name if header.origins else f"{header.id}/{name}"


def _shared(values_of_runs: set[int | None]) -> int | None:
    """The value that all runs have, or None if they differ."""
    return values_of_runs.pop() if len(values_of_runs) == 1 else None


def _block_offset(task: str, run: Run, offsets: Offsets) -> int:
    """The number of passes in earlier runs over the prompts of a block, which are those of `task`.

    `offsets` has the passes in earlier runs by prompt.

    Raises:
        UserError: the prompts of the block have different numbers of passes in earlier runs.
    """
    prompts = {_prompt_of(record) for record in run.records if record.key.task == task}
    offsets_of_block = {offsets.get(prompt, 0) for prompt in prompts}
    if len(offsets_of_block) > 1:
        raise UserError(
            f"{run.header.id} has prompts of {task} that earlier runs have, and prompts that they "
            "lack: a server's blocks cannot be split.",
            "Merge runs of the same prompts, or of different ones.",
        )
    return offsets_of_block.pop() if offsets_of_block else 0


def _prompts(headers: Sequence[RunHeader], records: Sequence[Record]) -> Iterator[PromptsHeader]:
    """The description of each task's prompts in the merged run, whose records are `records`.

    If one run has at least as many prompts of the task as the records have, its description is
    used. If not, the descriptions of all runs are joined, with a hash of their hashes (`sha256`).
    """
    # Task -> hash of a run's prompts -> description of the prompts.
    prompts_by_task: dict[str, dict[str, PromptsHeader]] = defaultdict(dict)
    for header in headers:
        for prompts in header.prompts:
            prompts_by_task[prompts.task][prompts.sha256] = prompts
    for task, prompts_by_hash in prompts_by_task.items():
        largest = max(prompts_by_hash.values(), key=lambda prompts: prompts.num_prompts)
        sample_ids = {record.key.sample_id for record in records if record.key.task == task}
        if len(sample_ids) <= largest.num_prompts:  # `largest` should then have them all
            yield largest
            continue
        categories: dict[str, tuple[str, ...]] = {}  # category -> ids of its prompts
        copies: dict[str, str] = {}  # id of a prompt -> id of an earlier prompt with the same text
        for prompts in prompts_by_hash.values():
            copies |= prompts.copies
            for category, ids in prompts.categories.items():
                categories[category] = tuple(dict.fromkeys((*categories.get(category, ()), *ids)))
        yield structs.replace(
            largest,
            num_prompts=len(sample_ids),
            sha256=hashlib.sha256("".join(sorted(prompts_by_hash)).encode()).hexdigest(),
            categories=categories,
            copies=copies,
        )


def _warnings(headers: Sequence[RunHeader]) -> Iterator[str]:
    """Yield the merged run's warnings.

    Each run adds its warnings, and one more if other programs used its processor. They begin with
    the run's id. Then there is a warning for each difference from the first run that may change
    times. `header.cpu` is None if the processor was not sampled. `others_warning` is None if other
    programs used little. Servers count as other programs, so they get no warning.
    """
    first_header, *other_headers = headers
    for header in headers:
        yield from (f"{header.id}: {warning}" for warning in header.warnings)
        if header.cpu and not header.servers and header.cpu.others_warning:
            yield f"{header.id}: {header.cpu.others_warning}"
    for header in other_headers:
        for sentence in in_words(MERGE.cautions(first_header, header), first_header, header):
            yield f"Merged runs differ in {sentence}."


def _origins(run: Run) -> Sequence[Origin]:
    """The origin that describes this run, or the origins of a merged run."""
    header = run.header
    if header.origins:
        return header.origins
    kept_fields = {name: getattr(header, name) for name in Origin.__struct_fields__}
    return [Origin(**{**kept_fields, "num_records": len(run.records)})]
