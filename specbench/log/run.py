"""A run in memory, with a header and records. It may be a part of a run, or several runs as one.

Speedups compare methods only at the same load, so a run on servers is split by load.
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
from specbench.log.difference import in_words
from specbench.log.header import RunHeader, Status
from specbench.log.policies import POOL
from specbench.log.spec import SpecValues
from specbench.types import Record, RecordKey


class Load(NamedTuple):
    """The load of a server. Both numbers are 0 for the engine in this process."""

    concurrency: int = 0
    """Requests at once."""
    request_rate: float = 0
    """Requests per second."""

    @property
    def text(self) -> str:
        """The load in words, such as "4 requests at once". Empty for the engine in this process."""
        if self.concurrency == 1:
            return "1 request at a time"
        if self.concurrency:
            return f"{self.concurrency} requests at once"
        return f"{self.request_rate:g} requests/s" if self.request_rate else ""


NO_LOAD = Load()
"""The load of the engine in this process, which completes one request at a time."""
ONE_AT_A_TIME = Load(concurrency=1)


def load_of(measured: BlockHeader | RecordKey) -> Load:
    """The load at which a block or a record was measured."""
    return Load(measured.concurrency, measured.request_rate)


def loads_of(spec_values: SpecValues) -> tuple[Load, ...]:
    """The loads in a run's options, in order. Empty for the engine in this process."""
    closed_loads = [Load(concurrency=concurrency) for concurrency in spec_values.concurrency]
    open_loads = [Load(request_rate=rate) for rate in spec_values.request_rates]
    return (*closed_loads, *open_loads)


BETWEEN = " / "
"""The text between the task and the category in a name."""


class BlockKey(NamedTuple):
    """Identity of a block, which is the requests that a server completes together."""

    method: str
    """Spelling of the method."""
    temperature: float
    """Sampling temperature."""
    task: str
    """Name of the task, without a category."""
    repeat: int
    """Pass over the prompts, from 0."""
    load: Load
    """Load of the server."""


def block_key(measured: BlockHeader | RecordKey) -> BlockKey:
    """The key of a block, or of a record's block. The task in the key has no category."""
    return BlockKey(
        measured.method,
        measured.temperature,
        measured.task.partition(BETWEEN)[0],
        measured.repeat,
        load_of(measured),
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A header and its records, for a whole run, a part of a run, or several runs as one."""

    header: RunHeader
    """Facts about the run besides its records."""
    records: tuple[Record, ...] = ()
    """Answers, in the order of the file."""
    path: Path | None = None
    """The folder that it was read from."""
    left_out: tuple[str, ...] = ()
    """Sentences about lines that were not read, with the reasons."""
    num_repeated: int = 0
    """Number of failed lines whose requests were repeated. The later line is the record."""
    audit: StoredAudit | None = None
    """The last audit of these records."""
    run_of_repeat: tuple[int, ...] = ()
    """In a pool, the index of each repeat's (pass's) run [repeats]. Empty for a single run."""

    @property
    def folder(self) -> Path:
        """The folder of a run that was read from a folder."""
        assert self.path is not None
        return self.path

    @property
    def loads(self) -> tuple[Load, ...]:
        """The loads of the run. The engine in this process completes one request at a time."""
        return loads_of(self.header.spec.values) or (ONE_AT_A_TIME,)

    @property
    def missing_text(self) -> str:
        """The number of missing records of a run marked as complete, in words. Empty if none are
        missing.
        """
        num_expected = self.header.num_records or 0
        num_missing = num_expected - len(self.records)
        if self.header.status != "complete" or num_missing <= 0:
            return ""
        return f"{num_missing} of {num_expected} records are missing"

    def at(self, load: Load) -> Run:
        """The part of the run that was measured at one load, as a run.

        A load is a number of requests at once, or per second, and the other number is 0. Only the
        first load's part has the facts about the whole run (warnings, missing records, lines left
        out, repeated requests), but every part has the energies and the untimed work. A block is
        the requests that a server completed together.
        """
        if self.loads == (load,):
            return self
        is_first = load == self.loads[0]
        records = tuple(record for record in self.records if load_of(record.key) == load)
        num_expected = self.header.num_records  # records of the whole run; None if unknown
        if num_expected:
            num_elsewhere = len(self.records) - len(records)  # records at other loads
            # All missing records of the run count as missing from its first load.
            num_expected = num_expected - num_elsewhere if is_first else len(records)
        spec = self.header.spec
        spec_values = structs.replace(  # the run's options, with this load only
            spec.values,
            concurrency=(load.concurrency,) if load.concurrency else (),
            request_rates=(load.request_rate,) if load.request_rate else (),
        )
        header = structs.replace(
            self.header,
            spec=structs.replace(spec, values=spec_values),
            num_records=num_expected,
            blocks=tuple(block for block in self.header.blocks if load_of(block) == load),
            warnings=self.header.warnings if is_first else (),
        )
        return replace(
            self,
            header=header,
            records=records,
            left_out=self.left_out if is_first else (),  # lines of the file that were not read
            num_repeated=self.num_repeated if is_first else 0,
        )

    def of(self, categories: Mapping[str, str]) -> Run:
        """The part of the run whose samples have a category, with the category as the task.

        `categories` maps the id of a sample to the name of its category.
        """
        records = tuple(
            replace(record, key=replace(record.key, task=categories[record.key.sample_id]))
            for record in self.records
            if record.key.sample_id in categories
        )
        header = structs.replace(
            self.header, columns={name: name for name in categories.values()}, prompts=()
        )
        return Run(header, records, run_of_repeat=self.run_of_repeat)

    @staticmethod
    def pooled(runs: Sequence[Run]) -> Run:
        """Combine several runs of one command on one machine into one run, which is called a pool.

        The repeats (passes over the prompts) are numbered consecutively over all runs.
        `run_of_repeat` has the run of each repeat, since the variance is computed from whole runs.

        Raises:
            UserError: a run was imported or is given twice, or differs from the first one in the
                work, the methods, their checkpoints and trees, or the hardware.
        """
        _check_poolable(runs)
        records: list[Record] = []
        run_of_repeat: list[int] = []  # index of the run, for each repeat of the pool
        for run_index, run in enumerate(runs):
            num_earlier_repeats = len(run_of_repeat)
            records += (renumbered(record, num_earlier_repeats) for record in run.records)
            run_of_repeat += [run_index] * _num_repeats(run.header)
        return Run(
            _pooled_header([run.header for run in runs]),
            tuple(records),
            left_out=tuple(line for run in runs for line in run.left_out),  # lines not read
            run_of_repeat=tuple(run_of_repeat),
        )


def _num_repeats(header: RunHeader) -> int:
    return header.spec.values.repeats or 1


def renumbered(record: Record, offset: int) -> Record:
    """The record with `offset` added to the number of its pass."""
    return replace(record, key=replace(record.key, repeat=record.key.repeat + offset))


def _check_poolable(runs: Sequence[Run]) -> None:
    """Raise UserError if a run is imported or given twice, or differs from the first run in what
    `POOL` forbids: the work, the methods, their checkpoints and trees, or the hardware.
    """
    first_header = runs[0].header
    for run_index, run in enumerate(runs):
        header = run.header
        header.refuse_import("pooled")
        if any(_is_copy(run, earlier_run) for earlier_run in runs[:run_index]):
            raise UserError(
                f"The run {header.id} is pooled with itself or a copy.", "Name it once."
            )
        conflicts = POOL.conflicts(first_header, header)  # differences that forbid a pool
        if conflicts:
            sentences = "; ".join(in_words(conflicts, first_header, header))
            raise UserError(
                f"Only runs of one command on one machine are pooled: {sentences}.",
                "Make them with `specbench run --runs N`, or use `specbench compare`.",
            )


def _is_copy(run: Run, earlier_run: Run) -> bool:
    """True if two runs share a random id of measurements, or if all their records are equal."""
    has_same_records = bool(run.records) and run.records == earlier_run.records
    return bool(run.header.uids & earlier_run.header.uids) or has_same_records


def _pooled_header(headers: Sequence[RunHeader]) -> RunHeader:
    """The header of a pool, which is the first run's header with the numbers of records and
    repeats, the blocks, energies, untimed work and warnings of all runs.

    Repeats (passes over the prompts) are numbered consecutively over all runs. A block is the
    requests that a server completed together, in one repeat.
    """
    first_header = headers[0]
    blocks: list[BlockHeader] = []
    num_repeats = 0  # of the runs so far
    for header in headers:
        blocks += (
            structs.replace(block, repeat=block.repeat + num_repeats) for block in header.blocks
        )
        num_repeats += _num_repeats(header)
    # The options of the first run, with the repeats of all runs.
    spec_values = structs.replace(first_header.spec.values, repeats=num_repeats)
    # The number of records that each run should have, unless its header does not have it.
    record_counts = [header.num_records for header in headers if header.num_records]
    are_all_counted = len(record_counts) == len(headers)
    return structs.replace(
        first_header,
        uid="",  # the random name of one run's measurements
        id=f"{first_header.id} and {len(headers) - 1} more",
        status=joint_status(headers),  # complete if all are
        finished=headers[-1].finished,
        spec=structs.replace(first_header.spec, values=spec_values),
        num_records=sum(record_counts) if are_all_counted else None,
        blocks=tuple(blocks),
        energy=tuple(energy for header in headers for energy in header.energy),
        hooks=added_hooks(headers),  # seconds of methods' untimed work
        weights_print=changed_print(headers),  # the first that changed, else the first
        warnings=tuple(dict.fromkeys(_pooled_warnings(headers))),
    )


def joint_status(headers: Sequence[RunHeader]) -> Status:
    """The status of the first run that is not complete, or "complete" if all are."""
    return next((header.status for header in headers if header.status != "complete"), "complete")


def added_hooks(headers: Sequence[RunHeader]) -> dict[str, HookTimes]:
    """Method -> its untimed work in all runs, as sums of seconds and counts. `build_s`, the seconds
    to build the drafter and load its weights, is the maximum instead of the sum.
    """
    totals: dict[str, HookTimes] = {}  # method -> its work in the runs so far
    for header in headers:
        for method, times in header.hooks.items():
            # all 0 in the method's first run
            earlier_times = totals.get(method, HookTimes(num_runs=0))
            sums = {  # field of HookTimes -> sum
                name: getattr(times, name) + getattr(earlier_times, name)
                for name in HookTimes.__struct_fields__
            }
            sums["build_s"] = max(times.build_s, earlier_times.build_s)
            totals[method] = HookTimes(**sums)
    return totals


def changed_print(headers: Sequence[RunHeader]) -> WeightsPrint | None:
    """The fingerprints of the first run whose weights changed, or else those of the first run."""
    prints = [header.weights_print for header in headers if header.weights_print]
    changed = [weights for weights in prints if weights.at_load != weights.at_end]
    return next(iter((*changed, *prints)), None)


def _pooled_warnings(headers: Sequence[RunHeader]) -> Iterable[str]:
    """Yield the pool's warnings: those of each run, then warnings about each later run. These say
    if other programs used its processor, and how it differs from the first run in ways that may
    change times. A run on servers has no warning about other programs: the servers are among them.
    """
    first_header, *other_headers = headers
    for header in headers:
        yield from header.warnings
    # The pool's header has the first run's `cpu`, which the report warns about.
    for header in other_headers:
        # `cpu` is None if the use of the processor was not sampled.
        if header.cpu and not header.servers and header.cpu.others_warning:
            yield f"{header.id}: {header.cpu.others_warning}"
        for difference in in_words(POOL.cautions(first_header, header), first_header, header):
            yield f"Pooled runs differ in {difference}."
