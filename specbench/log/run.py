"""A run in memory: a header and records. Parts of it, and several runs as one.

Speedups compare methods at the same load only, so a run on servers is taken apart by load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from specbench.errors import UserError
from specbench.log.audit import StoredAudit
from specbench.log.backend import BlockHeader, HookTimes, WeightsPrint
from specbench.log.differences import POOL, in_words
from specbench.log.header import RunHeader
from specbench.log.spec import SpecValues
from specbench.types import Record, RecordKey


class Load(NamedTuple):
    """The load of a server: requests at once, or per second. Both are 0 for the engine."""

    concurrency: int = 0
    request_rate: float = 0

    @property
    def text(self) -> str:
        if self.concurrency == 1:
            return "1 request at a time"
        if self.concurrency:
            return f"{self.concurrency} requests at once"
        return f"{self.request_rate:g} requests/s" if self.request_rate else ""


NO_LOAD = Load()
"""The load of the engine in this process, which completes one request after the other."""
ONE_AT_A_TIME = Load(concurrency=1)


def load_of(measured: BlockHeader | RecordKey) -> Load:
    """The load at which a block or a record was measured."""
    return Load(measured.concurrency, measured.request_rate)


BlockKey = tuple[object, ...]
BETWEEN = " / "
"""Between a task and a category in the name of what is measured."""


def block_key(one: BlockHeader | RecordKey) -> BlockKey:
    """The key of a record's block, or of a block. That of a category is its task's."""
    task = one.task.partition(BETWEEN)[0]
    return (one.method, one.temperature, task, one.repeat, *load_of(one))


def loads_of(values: SpecValues) -> tuple[Load, ...]:
    """The loads that a run's specification names, in order; none for the engine."""
    at_once = [Load(concurrency=number) for number in values.concurrency]
    return (*at_once, *(Load(request_rate=rate) for rate in values.request_rates))


@dataclass(frozen=True, slots=True)
class Run:
    """A header and its records: a whole run, a part of one, or several runs as one.

    `path` is the folder that it was read from, `left_out` names lines of it that were not
    read, and `audit` is the last audit of these records. `run_of_repeat` is the run of each
    repeat of a pool.
    """

    header: RunHeader
    records: tuple[Record, ...] = ()
    path: Path | None = None
    left_out: tuple[str, ...] = ()
    audit: StoredAudit | None = None
    run_of_repeat: tuple[int, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of a run that was read from one."""
        assert self.path is not None
        return self.path

    @property
    def loads(self) -> tuple[Load, ...]:
        """The loads of the run. The engine in this process completes one request at a time."""
        return loads_of(self.header.spec.values) or (ONE_AT_A_TIME,)

    @property
    def missing_text(self) -> str:
        """The records that a run lacks although it says that it is complete; empty if none."""
        expected = self.header.num_records or 0
        num_missing = expected - len(self.records)
        is_cut = self.header.status == "complete" and num_missing > 0
        return f"{num_missing} of {expected} records are missing" if is_cut else ""

    def at(self, load: Load) -> Run:
        """The part that was measured at one load; the run itself if it has this load alone.

        What concerns the whole run, its warnings, missing records and lines left out, stays
        with its first load.
        """
        if self.loads == (load,):
            return self
        spec, is_first = self.header.spec, load == self.loads[0]
        records = tuple(record for record in self.records if load_of(record.key) == load)
        expected, num_others = self.header.num_records, len(self.records) - len(records)
        values = structs.replace(
            spec.values,
            concurrency=(load.concurrency,) if load.concurrency else (),
            request_rates=(load.request_rate,) if load.request_rate else (),
        )
        header = structs.replace(
            self.header,
            spec=structs.replace(spec, values=values),
            num_records=expected and (expected - num_others if is_first else len(records)),
            blocks=tuple(one for one in self.header.blocks if load_of(one) == load),
            warnings=self.header.warnings if is_first else (),
        )
        left_out = self.left_out if is_first else ()
        return replace(self, header=header, records=records, left_out=left_out)

    def of(self, categories: Mapping[str, str]) -> Run:
        """The samples that have a category here, with the categories as tasks."""
        records = tuple(
            replace(record, key=replace(record.key, task=categories[record.key.sample_id]))
            for record in self.records
            if record.key.sample_id in categories
        )
        columns = {name: name for name in categories.values()}
        header = structs.replace(self.header, columns=columns, prompts=())
        return Run(header, records, run_of_repeat=self.run_of_repeat)

    @staticmethod
    def pooled(runs: Sequence[Run]) -> Run:
        """Whole runs of one command on one machine as one run, each a unit of variance.

        The repeats of all runs are numbered on.

        Raises:
            UserError: the runs differ in work, machine or methods, or one is given twice.
        """
        _check_poolable(runs)
        records: list[Record] = []
        run_of_repeat: list[int] = []
        for number, run in enumerate(runs):
            offset = len(run_of_repeat)
            records += (renumbered(record, offset) for record in run.records)
            run_of_repeat += [number] * (run.header.spec.values.repeats or 1)
        return Run(
            _pooled_header([run.header for run in runs], num_repeats=len(run_of_repeat)),
            tuple(records),
            left_out=tuple(line for run in runs for line in run.left_out),
            run_of_repeat=tuple(run_of_repeat),
        )


def renumbered(record: Record, offset: int) -> Record:
    """The record as one of a later pass."""
    return replace(record, key=replace(record.key, repeat=record.key.repeat + offset))


def _check_poolable(runs: Sequence[Run]) -> None:
    first = runs[0].header
    for number, run in enumerate(runs):
        if any(
            run.header.uids & other.header.uids or (run.records and run.records == other.records)
            for other in runs[:number]
        ):
            raise UserError(
                f"The run {run.header.id} is pooled with itself or a copy.", "Name it once."
            )
        if found := POOL.conflicts(first, run.header):
            texts = "; ".join(in_words(found, first, run.header))
            raise UserError(
                f"Only runs of one command on one machine are pooled: {texts}.",
                "Make them by `specbench run --runs N`, or compare them: `specbench compare`.",
            )


def _pooled_header(headers: Sequence[RunHeader], num_repeats: int) -> RunHeader:
    """The first header, with the repeats, blocks and warnings of all."""
    first, offset, blocks = headers[0], 0, []
    for one in headers:
        blocks += [structs.replace(b, repeat=b.repeat + offset) for b in one.blocks]
        offset += one.spec.values.repeats or 1
    values = structs.replace(first.spec.values, repeats=num_repeats)
    known = [one.num_records for one in headers]
    return structs.replace(
        first,
        uid="",
        id=f"{first.id} and {len(headers) - 1} more",
        status=next((one.status for one in headers if one.status != "complete"), "complete"),
        finished=headers[-1].finished,
        spec=structs.replace(first.spec, values=values),
        num_records=sum(n for n in known if n) if all(known) else None,
        blocks=tuple(blocks),
        hooks=added_hooks(headers),
        weights_print=changed_print(headers),
        warnings=tuple(dict.fromkeys(_pooled_warnings(headers))),
    )


def added_hooks(headers: Sequence[RunHeader]) -> dict[str, HookTimes]:
    """The untimed work of several runs: sums, but a drafter is built once a run."""
    found: dict[str, HookTimes] = {}
    for label, one in (each for header in headers for each in header.hooks.items()):
        other = found.get(label, HookTimes())
        sums = one.remember_s + other.remember_s, one.forget_s + other.forget_s
        found[label] = HookTimes(max(one.build_s, other.build_s), *sums)
    return found


def changed_print(headers: Sequence[RunHeader]) -> WeightsPrint | None:
    """The first fingerprint of weights that changed during a run, else the first run's."""
    prints = [one.weights_print for one in headers if one.weights_print]
    changed = [one for one in prints if one.at_load != one.at_end]
    return next(iter((*changed, *prints)), None)


def _pooled_warnings(headers: Sequence[RunHeader]) -> Iterable[str]:
    for one in headers:
        yield from one.warnings
    for one in headers[1:]:
        if one.cpu and not one.servers and (busy := one.cpu.others_warning):
            yield f"{one.id}: {busy}"
        for text in in_words(POOL.cautions(headers[0], one), headers[0], one):
            yield f"Pooled runs differ in {text}."
