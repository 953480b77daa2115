"""Several runs of the same work on one machine as one: each run is a unit of repetition.

Knows files and headers of runs. Computes no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from specbench.analysis.metrics import Run
from specbench.errors import UserError
from specbench.log.comparability import circumstances, machine_difference, require_same_work
from specbench.log.header import RunHeader
from specbench.log.state import pooled_folders
from specbench.log.store import HEADER, read_run
from specbench.types import Record


@dataclass(frozen=True, slots=True)
class PooledRun:
    """Runs as one. The repeats of all runs are numbered on; `run_of_repeat` is the run of each."""

    header: RunHeader
    records: tuple[Record, ...]
    run_of_repeat: tuple[int, ...]
    left_out: tuple[str, ...] = ()


def read_runs(path: Path, *, is_lenient: bool = False) -> Run:
    """The run in a folder, or the pool of the runs in its subfolders (`specbench run --runs`).

    Raises:
        RunFolderError: there is no run, or one cannot be read.
        UserError: the runs in the folder are not runs of the same work on one machine.
    """
    folders = pooled_folders(path)
    if (path / HEADER).exists() or not folders:
        return read_run(path, is_lenient=is_lenient)
    pooled = pool([read_run(folder, is_lenient=is_lenient) for folder in folders])
    return replace(pooled, header=structs.replace(pooled.header, id=path.resolve().name))


def pool(runs: Sequence[Run]) -> PooledRun:
    """The runs as one.

    Raises:
        UserError: the runs differ in work, machine or methods, or one is given twice.
    """
    first = runs[0].header
    for number, run in enumerate(runs):
        if any(run.records and run.records == other.records for other in runs[:number]):
            raise UserError(
                f"The run {run.header.id} is pooled with itself or a copy.", "Name it once."
            )
        require_same_work(first, run.header)
        if difference := machine_difference(first, run.header):
            raise UserError(
                f"Runs of different machines are not pooled: {difference.describe()}.",
                "Compare them with `specbench compare`.",
            )
        if run.header.spec.values.methods != first.spec.values.methods:
            raise UserError(
                f"The runs {first.id} and {run.header.id} have different methods.",
                "Pool runs of one command: `specbench run --runs N`.",
            )
    records: list[Record] = []
    run_of_repeat: list[int] = []
    for number, run in enumerate(runs):
        offset = len(run_of_repeat)
        num_repeats = run.header.spec.values.repeats or 1
        records += (_renumbered(record, offset) for record in run.records)
        run_of_repeat += [number] * num_repeats
    left_out = tuple(line for run in runs for line in getattr(run, "left_out", ()))
    header = _header([run.header for run in runs], num_repeats=len(run_of_repeat))
    return PooledRun(header, tuple(records), tuple(run_of_repeat), left_out)


def _renumbered(record: Record, offset: int) -> Record:
    return replace(record, key=replace(record.key, repeat=record.key.repeat + offset))


def _header(headers: Sequence[RunHeader], num_repeats: int) -> RunHeader:
    """The first header, with the repeats, blocks and warnings of all."""
    first, offset, blocks = headers[0], 0, []
    for one in headers:
        blocks += [structs.replace(b, repeat=b.repeat + offset) for b in one.blocks]
        offset += one.spec.values.repeats or 1
    values = structs.replace(first.spec.values, repeats=num_repeats)
    known = [one.num_records for one in headers]
    return structs.replace(
        first,
        id=f"{first.id} and {len(headers) - 1} more",
        status=next((one.status for one in headers if one.status != "complete"), "complete"),
        finished=headers[-1].finished,
        spec=structs.replace(first.spec, values=values),
        num_records=sum(n for n in known if n) if all(known) else None,
        blocks=tuple(blocks),
        warnings=tuple(dict.fromkeys(_warnings(headers))),
    )


def _warnings(headers: Sequence[RunHeader]) -> Iterable[str]:
    for one in headers:
        yield from one.warnings
    for one in headers[1:]:
        for difference in circumstances(headers[0], one):
            yield f"Pooled runs differ in {difference.describe(headers[0].id, one.id)}."
