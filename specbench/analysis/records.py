"""Put a run's records into one table, each with vanilla's answer to the same request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.decode_times import decode_times
from specbench.analysis.prompts_read import other_rows, prompt_offsets
from specbench.analysis.ratios import RowGroups
from specbench.analysis.served_steps import ServedSteps, served_steps
from specbench.analysis.stats.arrays import IntArray
from specbench.log.backend import BlockHeader
from specbench.types import BASELINE as BASELINE
from specbench.types import Phases, Record, RecordKey

if TYPE_CHECKING:
    from pandas import DataFrame


POOLED = ""
"""The task in the key of a cell that has all tasks together."""

CELL_KEY = ["method", "temperature", "task"]
"""The columns that identify a cell."""

REQUEST_KEY = [
    "temperature",
    "task",
    "sample_id",
    "turn",
    "repeat",
    "concurrency",
    "request_rate",
]
"""The columns that identify a request, whatever the method and the run."""

PHASES = [phase.name for phase in fields(Phases)]

_CATEGORIES = ("method", "task", "sample_id", "status", "stop_reason", "origin", "worker")
_INTEGERS = ("turn", "repeat", "concurrency", "seed", "prompt_tokens", "num_tokens")
_FLOATS = (
    "temperature",
    "request_rate",
    "prefill_s",
    "decode_s",
    "wall_s",
    "energy_j",
    "peak_memory_bytes",
)
_OF_KEYS = {field.name for field in fields(RecordKey)}
"""The columns that are fields of a record's key."""
_BASELINE_COLUMNS = ("num_tokens", "num_steps", "decode_s", "wall_s")


@dataclass(frozen=True, slots=True, eq=False)
class RecordTable:
    """The records of a run as columns. Rows of the table are selected for each cell."""

    records: Sequence[Record]
    """The records in the order in which they ran, one per row."""

    frame: DataFrame
    """`records_frame` with further columns:

    - `cluster`: the number of the sample. Its turns and passes form one cluster, since they depend
      on each other, and so do samples with the same prompt.
    - `baseline_row`: the row of vanilla's measured record of the same request on the same worker,
      or -1; and that record's `baseline_num_tokens`, `baseline_num_steps`, `baseline_decode_s` and
      `baseline_wall_s`, all 0 without such a record.
    - `prompt_offset`: tokens of the prompt as the server counted them - tokens as rendered here;
      NaN if unknown. `read_tokens`: the server's count, or else the tokens rendered here. If
      vanilla's server has another offset, `other_row` is vanilla's row (else -1), and
      `baseline_row` is -1.
    - `unit`: the number of the pass over the prompts, or of the run of a pool.
    - `request`: the number of the sample's turn, the same in every unit.
    - `asked`: the number of the request, the same for every method, but not in every pass.
    - `decode_s`: seconds by the client's clock or the server's, NaN if left out; `is_burst`,
      `is_of_server` and `is_left_out` tell which (see `decode_times`).
    - `is_same`: True if the answer is vanilla's (see `answer_of`). `is_paused`: True if the machine
      paused during the answer.
    - `is_cut`: True if the last step may have accepted one more draft token than it shows.
    - `mat_emitted` and `mat_steps`: tokens that steps emitted, and steps. They are `num_emitted`
      and `num_steps`, or those of `served_steps` if a server lists no steps; 0 if unknown.
    - `first_step`: the position of the record's first step in `accept_lengths` [steps].
    """

    columns: Mapping[str, NDArray[Any]]
    """The frame's columns as arrays [records], without the categories. Taking the rows of a cell
    from an array is ten times faster than from the frame.
    """

    accept_lengths: IntArray
    """The tokens that each step emitted, in one record after the other [steps]."""

    served: ServedSteps
    """The steps of answers whose server does not list them."""

    num_units: int = 1

    def values(self, rows: IntArray, *names: str) -> list[NDArray[Any]]:
        """Return these rows of the named columns: one array [rows] per name."""
        return [self.columns[name][rows] for name in names]

    def groups(self, rows: IntArray) -> RowGroups:
        """Return the sample, the unit and the request of each of these rows."""
        clusters, units, requests = self.values(rows, "cluster", "unit", "request")
        return RowGroups(clusters, units, requests, self.num_units)

    def lengths(self, rows: IntArray) -> IntArray:
        """List the tokens that each step of these rows emitted, row after row [steps].

        The position of a step is the position of its row's first step + the step's number in its
        row. Two rows with 2 and 3 steps, which begin at positions 7 and 4, take the positions
        7 + (0 1) and 4 + (0 1 2): 7 8 4 5 6.
        """
        num_steps, first_steps = self.values(rows, "num_steps", "first_step")
        steps_before = num_steps.cumsum() - num_steps  # [rows]
        step_numbers = np.arange(num_steps.sum()) - np.repeat(steps_before, num_steps)  # [steps]
        return self.accept_lengths[np.repeat(first_steps, num_steps) + step_numbers]


def records_frame(records: Sequence[Record]) -> DataFrame:
    """Put records into a frame with one row per record, in their order. Its columns are:

    - `method`, `task`, `sample_id`, `status`, `stop_reason`, `origin` (run from which it was
      merged), `worker` (process of a run with --ray): categories.
    - `turn` of a chat (from 0), `repeat` (number of the pass over all prompts, from 0),
      `concurrency` (requests at once), `seed`, `prompt_tokens` (0: unknown), `num_tokens`,
      `num_steps` (steps that the record lists) and `num_emitted` (tokens that these emitted):
      integers.
    - `temperature`, `request_rate` (per second), `prefill_s` (seconds to the first token),
      `decode_s` (seconds after it), `wall_s` (both), `energy_j` (joules), `peak_memory_bytes`, and
      the seconds of phases `draft_s`, `verify_s`, `commit_s`, `host_s` (sums over the record's
      steps): floats, NaN if not measured.
    - `is_measured`: True if the record has tokens and a time, or has tokens and was imported from
      another tool's file without times. Any other record counts as failed.
    - `error`: the text of the error, or None.
    """
    import pandas as pd

    keys = [record.key for record in records]

    def column(name: str) -> list[Any]:
        """List the values of a field of the records, or of their keys (method and request)."""
        holders: Sequence[object] = keys if name in _OF_KEYS else records  # objects with this field
        return [getattr(record, name) for record in holders]

    def integers(numbers: list[Any]) -> NDArray[np.int64]:
        return np.array(numbers, dtype=np.int64)

    def floats(numbers: list[Any]) -> NDArray[np.float64]:
        return np.array(numbers, dtype=np.float64)

    columns: dict[str, Any] = {name: pd.Categorical(column(name)) for name in _CATEGORIES}
    columns |= {name: integers(column(name)) for name in _INTEGERS}
    accept_lengths = [record.accept_lengths for record in records]  # tokens emitted per step
    columns["num_steps"] = integers([len(lengths) for lengths in accept_lengths])
    columns["num_emitted"] = integers([sum(lengths) for lengths in accept_lengths])
    columns |= {name: floats(column(name)) for name in _FLOATS}
    phases_of_records = [record.phases for record in records]
    for name in PHASES:  # `draft_s` and so on
        # None, for a record without phases, becomes NaN.
        columns[name] = floats([phases and getattr(phases, name) for phases in phases_of_records])
    columns["error"] = pd.Series(column("error"), dtype=object)
    frame = pd.DataFrame(columns)
    is_timed = frame["wall_s"].between(0, np.inf, inclusive="neither")
    has_tokens = (frame["status"] == "ok") & (frame["num_tokens"] > 0)
    is_imported = np.array([record.imported is not None for record in records], dtype=bool)
    frame["is_measured"] = (is_timed | (is_imported & frame["wall_s"].isna())) & has_tokens
    return frame


def make_table(
    records: Sequence[Record],
    run_of_repeat: Sequence[int] = (),
    blocks: Sequence[BlockHeader] = (),
    copied_prompts: Mapping[str, str] | None = None,
) -> RecordTable:
    """Make the table of these records: `records_frame` with the columns of `RecordTable`.

    Args:
        records: the records, in the order in which they ran.
        run_of_repeat: the number of the run of each pass of a pool of runs; empty for one run.
        blocks: groups of requests that servers completed together, with the servers' counters.
        copied_prompts: id of a sample -> id of the earlier sample that has the same prompt.
    """
    frame = records_frame(records)
    repeats = frame["repeat"].to_numpy()  # numbers of passes [records]
    frame["unit"] = np.array(run_of_repeat, dtype=np.int64)[repeats] if run_of_repeat else repeats
    # Requests and samples are numbered by name: the order of records must not change an interval.
    frame["request"] = frame.groupby(["task", "sample_id", "turn"], observed=True).ngroup()
    first_of_copies = copied_prompts or {}
    # for each record: the id of the first sample with its prompt
    first_ids = frame["sample_id"].map(lambda sample_id: first_of_copies.get(sample_id, sample_id))
    frame["cluster"] = frame.groupby(["task", first_ids], observed=True).ngroup()
    frame["asked"] = frame.groupby(REQUEST_KEY, observed=True, sort=False).ngroup()
    # If the tokens of an answer reached the client in a burst, the decode times of all methods for
    # its request are those of the servers' clocks. They are left out if a server has none.
    times = decode_times(frame, records, blocks)
    frame["decode_s"] = times.seconds
    frame["is_burst"] = times.is_burst
    frame["is_of_server"] = times.is_of_server
    frame["is_left_out"] = times.is_left_out
    paired_rows = _baseline_rows(frame)  # vanilla's record of the request, or -1 [records]
    # tokens of the prompt as the server counted them - tokens as rendered here; NaN if unknown
    offsets = prompt_offsets(records)
    frame["prompt_offset"] = offsets
    frame["read_tokens"] = frame["prompt_tokens"] + np.nan_to_num(offsets)
    frame["other_row"] = other_rows(offsets, paired_rows)
    # Vanilla's record is not a baseline if its server read another prompt.
    baseline_rows = np.where(frame["other_row"] >= 0, -1, paired_rows)
    frame["baseline_row"] = baseline_rows
    for name in _BASELINE_COLUMNS:
        baseline_column = frame[name].to_numpy()[baseline_rows]
        frame[f"baseline_{name}"] = np.where(baseline_rows >= 0, baseline_column, 0)
    frame["is_same"] = _is_same(records, baseline_rows)
    frame["is_paused"] = [record.is_paused for record in records]  # the machine paused during it
    frame["is_cut"] = np.array([_is_cut(record) for record in records], dtype=bool)
    served = served_steps(records, blocks)
    frame["mat_emitted"] = np.array(served.emitted, dtype=np.int64)
    frame["mat_steps"] = np.array(served.steps, dtype=np.float64)  # steps may have fractions
    frame["first_step"] = frame["num_steps"].cumsum() - frame["num_steps"]
    all_lengths = chain.from_iterable(record.accept_lengths for record in records)
    array_columns = frame.select_dtypes(exclude="category")  # columns that become arrays
    return RecordTable(
        records,
        frame,
        columns={name: frame[name].to_numpy() for name in array_columns},
        accept_lengths=np.fromiter(all_lengths, np.intp, frame["num_steps"].sum()),
        served=served,
        num_units=1 + int(frame["unit"].max()) if len(frame) else 1,  # passes or runs
    )


def _baseline_rows(frame: DataFrame) -> IntArray:
    """Find, for each record, vanilla's row for the same request on the same worker [records].

    It is -1 if there is no such record, or if it failed. `frame` has one row per record; `asked` is
    the number of the request, the same for all methods, and `worker` the process that answered.
    """
    request_of_row = frame["asked"].to_numpy()
    worker_of_row = frame["worker"].cat.codes.to_numpy()  # numbers of workers
    is_baseline = (frame["method"] == BASELINE) & frame["is_measured"]  # it did not fail
    baseline_rows = np.flatnonzero(is_baseline)
    # vanilla's row for each request; there are at most as many requests as records
    baseline_of_request = np.full(len(frame), -1, dtype=np.intp)
    baseline_of_request[request_of_row[baseline_rows]] = baseline_rows
    baseline_of_row = baseline_of_request[request_of_row]  # [records]
    # A row -1 compares with the worker of the last row, but then the first condition is False.
    has_same_worker = (baseline_of_row >= 0) & (worker_of_row[baseline_of_row] == worker_of_row)
    return np.where(has_same_worker, baseline_of_row, -1)


def _is_same(records: Sequence[Record], baseline_rows: IntArray) -> NDArray[np.bool_]:
    """Find the records with vanilla's answer: its token ids, or else its text [records].

    `baseline_rows` has the row of vanilla's record of the same request, or -1 [records].
    """
    is_same = [
        row >= 0 and answer_of(record) == answer_of(records[row])
        for record, row in zip(records, baseline_rows.tolist(), strict=True)
    ]
    return np.array(is_same, dtype=bool)


def answer_of(record: Record) -> object:
    """Return the token ids of an answer, or the text or its hash if an imported one has no ids."""
    if record.token_ids or record.imported is None:
        return record.token_ids
    return record.text or record.imported.answer_hash


def _is_cut(record: Record) -> bool:
    """Check if the last step may have accepted one more draft token than it shows.

    If EOS or the budget ends an answer, its last token may be a draft token or the target's token.
    It is the target's if the step emitted as many tokens as its draft tree has nodes, counting the
    root, since then all draft tokens come before it.
    """
    lengths = record.accept_lengths  # emitted tokens of each step
    num_nodes = record.num_nodes  # nodes of each step's tree, counting the root; empty if unknown
    if not lengths:
        return False
    return not num_nodes or num_nodes[-1] != lengths[-1]
