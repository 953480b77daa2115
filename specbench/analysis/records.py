"""A run's records in one table, each with vanilla's answer to the same request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.ratios import Places
from specbench.analysis.served_steps import ServedSteps, served_steps
from specbench.analysis.stats.arrays import BoolArray, IntArray
from specbench.log.backend import BlockHeader
from specbench.types import BASELINE as BASELINE
from specbench.types import Phases, Record, RecordKey

if TYPE_CHECKING:
    from pandas import DataFrame


POOLED = ""
"""The task of a cell that takes all tasks together."""
CELL_KEY = ["method", "temperature", "task"]
"""The columns that identify a cell."""
REQUEST_KEY = [
    "temperature", "task", "sample_id", "turn", "repeat", "concurrency", "request_rate",
]  # fmt: skip
"""The columns that identify a request over methods and runs."""
PHASES = [phase.name for phase in fields(Phases)]


_CATEGORIES = ("method", "task", "sample_id", "status", "stop_reason", "origin", "worker")
_INTEGERS = ("turn", "repeat", "concurrency", "seed", "prompt_tokens", "num_tokens")
_FLOATS = ["temperature", "request_rate", "prefill_s", "decode_s", "wall_s", "energy_j"]
_FLOATS += ["peak_memory_bytes"]
_OF_KEYS = {field.name for field in fields(RecordKey)}
_BASELINE_COLUMNS = ["num_tokens", "num_steps", "decode_s", "wall_s"]


@dataclass(frozen=True, slots=True, eq=False)
class RecordTable:
    """The records of a run, made into columns once. A cell is some of its rows.

    `frame` is `records_frame` with further columns:

    - `cluster`: the number of the sample. Its turns and passes are one cluster, since they depend
      on each other.
    - `baseline_row`: the row of vanilla's measured record of the same request on the same worker,
      or -1; and that
      record's `baseline_num_tokens`, `baseline_num_steps`, `baseline_decode_s` and
      `baseline_wall_s`, all 0 without one.
    - `unit`: the pass over the prompts, or the run of a pool; `request`: the number of sample and
      turn, the same in every unit; `asked`: the number of the request, the same for every method.
    - `is_same`: True if the token ids are vanilla's.
    - `is_cut`: True if the last step may have accepted one more guess than it shows.
    - `mat_emitted` and `mat_steps`: tokens that steps emitted, and steps. They are `num_emitted`
      and `num_steps`, or, of a server that lists no steps, those of `served_steps`; 0 if unknown.
    - `first_step`: the place of the record's first step in `accept_lengths` [steps].

    `served` has the steps of answers whose server does not list them. `columns` are those of
    the frame as arrays [records], except categories: a column of a cell is ten times faster to
    take from an array.
    """

    records: Sequence[Record]
    frame: DataFrame
    columns: Mapping[str, NDArray[Any]]
    accept_lengths: IntArray
    served: ServedSteps
    num_units: int = 1

    def values(self, rows: IntArray, *names: str) -> list[NDArray[Any]]:
        """These columns at these rows: [rows] each."""
        return [self.columns[name][rows] for name in names]

    def places(self, rows: IntArray) -> Places:
        """The sample, the unit and the request of these rows."""
        clusters, units, requests = self.values(rows, "cluster", "unit", "request")
        return Places(clusters, units, requests, self.num_units)

    def lengths(self, rows: IntArray) -> IntArray:
        """Accept lengths [steps] of these rows, one record after the other.

        Rows with 2 and 3 steps that begin at places 7 and 4 take the places 7 8, 4 5 6: the
        place of the row's first step, plus the step's number in its row, 0 1, 0 1 2.
        """
        counts, first = self.values(rows, "num_steps", "first_step")
        number_in_row = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        return self.accept_lengths[np.repeat(first, counts) + number_in_row]


def records_frame(records: Sequence[Record]) -> DataFrame:
    """One row a record, in the order of the records.

    - `method`, `task`, `sample_id`, `status`, `stop_reason`, `origin`, `worker`: categories.
    - `turn`, `repeat`, `concurrency`, `seed`, `prompt_tokens`, `num_tokens`, `num_steps` and
      `num_emitted` (tokens that steps emitted): integers.
    - `temperature`, `request_rate`, `prefill_s`, `decode_s`, `wall_s`, `energy_j`,
      `peak_memory_bytes`, and `draft_s`, `verify_s`, `commit_s`, `host_s` (sums over the record's
      steps): floats. NaN stands for what was not measured.
    - `is_measured`: True if the record has tokens and a time. Any other record counts as failed.
    - `error`: the text, or None.
    """
    import pandas as pd

    keys = [record.key for record in records]

    def column(name: str) -> list[Any]:
        return [getattr(one, name) for one in (keys if name in _OF_KEYS else records)]

    lengths = [record.accept_lengths for record in records]
    phases = [record.phases for record in records]
    integers = {name: column(name) for name in _INTEGERS}
    integers |= {"num_steps": [*map(len, lengths)], "num_emitted": [*map(sum, lengths)]}
    floats = {name: column(name) for name in _FLOATS}
    floats |= {name: [one and getattr(one, name) for one in phases] for name in PHASES}
    frame = pd.DataFrame(
        {name: pd.Categorical(column(name)) for name in _CATEGORIES}
        | {name: np.array(values, dtype=np.int64) for name, values in integers.items()}
        | {name: np.array(values, dtype=np.float64) for name, values in floats.items()}
        | {"error": pd.Series(column("error"), dtype=object)}
    )
    is_timed = frame["wall_s"].between(0, np.inf, inclusive="neither")
    frame["is_measured"] = is_timed & (frame["status"] == "ok") & (frame["num_tokens"] > 0)
    return frame


def make_table(
    records: Sequence[Record],
    run_of_repeat: Sequence[int] = (),
    blocks: Sequence[BlockHeader] = (),
) -> RecordTable:
    """The table of these records.

    `run_of_repeat` is the run of each repeat of a pool, `blocks` are those of servers.
    """
    frame = records_frame(records)
    repeats = frame["repeat"].to_numpy()
    frame["unit"] = np.array(run_of_repeat, dtype=np.int64)[repeats] if run_of_repeat else repeats
    frame["request"] = frame.groupby(["task", "sample_id", "turn"], observed=True).ngroup()
    # Sorted by name: the order in which records were written must not change an interval.
    frame["cluster"] = frame.groupby(["task", "sample_id"], observed=True).ngroup()
    frame["asked"] = frame.groupby(REQUEST_KEY, observed=True, sort=False).ngroup()
    partner = _baseline_rows(frame)
    frame["baseline_row"] = partner
    for name in _BASELINE_COLUMNS:
        frame[f"baseline_{name}"] = np.where(partner >= 0, frame[name].to_numpy()[partner], 0)
    pairs = zip(records, partner.tolist(), strict=True)
    is_same = [row >= 0 and one.token_ids == records[row].token_ids for one, row in pairs]
    frame["is_same"] = np.array(is_same, dtype=bool)
    frame["is_paused"] = [record.is_paused for record in records]
    frame["is_cut"] = np.array([_is_cut(record) for record in records], dtype=bool)
    served = served_steps(records, blocks)
    frame["mat_emitted"] = np.array(served.emitted, dtype=np.int64)
    frame["mat_steps"] = np.array(served.steps, dtype=np.float64)
    frame["first_step"] = frame["num_steps"].cumsum() - frame["num_steps"]
    lengths = chain.from_iterable(record.accept_lengths for record in records)
    return RecordTable(
        records,
        frame,
        columns={name: frame[name].to_numpy() for name in frame.select_dtypes(exclude="category")},
        accept_lengths=np.fromiter(lengths, np.intp, frame["num_steps"].sum()),
        served=served,
        num_units=1 + int(frame["unit"].max()) if len(frame) else 1,
    )


def _baseline_rows(frame: DataFrame) -> IntArray:
    """The row of vanilla's measured record of each row's request and worker; -1 without one."""
    request = frame["asked"].to_numpy()
    baseline = np.flatnonzero((frame["method"] == BASELINE) & frame["is_measured"])
    row_of = np.full(len(frame), -1, dtype=np.intp)
    row_of[request[baseline]] = baseline
    partner, worker = row_of[request], frame["worker"].cat.codes.to_numpy()
    return np.where((partner >= 0) & (worker[partner] == worker), partner, -1)


def _is_cut(record: Record) -> bool:
    """EOS and the budget hide whether the last token was a guess or the target's own."""
    lengths, nodes = record.accept_lengths, record.num_nodes
    return bool(lengths) and (not nodes or nodes[-1] != lengths[-1])


LEAST_DONE = 0.5
"""Share of a task's requests that a method must finish to be compared on it."""


@dataclass(frozen=True, slots=True, eq=False)
class Survivors:
    """The rows of a table that every ranked method has, and the methods that are not ranked.

    `is_shared` is [records]. `unranked` maps method, temperature and task to the numbers of
    requests that were finished and asked; `num_requests` and `num_shared` count those that any
    and that every ranked method finished, by temperature and task. `num_paused` of these are
    left out of `is_shared`.
    """

    is_shared: BoolArray
    unranked: Mapping[tuple[str, float, str], tuple[int, int]] = field(default_factory=dict)
    num_requests: int = 0
    num_shared: int = 0
    num_paused: int = 0


def find_survivors(frame: DataFrame) -> Survivors:
    """The survivors among the records of the frame of a `RecordTable`."""
    is_measured = frame["is_measured"].to_numpy()
    done = frame[is_measured]
    if not len(done):
        return Survivors(is_measured)
    over_methods = ["temperature", "task"]
    num_done = done.groupby(CELL_KEY, observed=True)["asked"].transform("size")
    num_asked = done.groupby(over_methods, observed=True)["asked"].transform("nunique")
    is_ranked = num_done >= LEAST_DONE * num_asked
    few = done[~is_ranked].drop_duplicates(CELL_KEY)
    unranked = {
        (method, temperature, task): (int(num_done[row]), int(num_asked[row]))
        for row, method, temperature, task in few[CELL_KEY].itertuples()
    }
    ranked = done[is_ranked]
    num_methods = ranked.groupby(over_methods, observed=True)["method"].transform("nunique")
    finished = ranked[ranked.groupby("asked")["method"].transform("size") == num_methods]
    paused = finished.groupby("asked")["is_paused"]
    is_shared = is_measured & False
    is_shared[finished.index[~paused.transform("any")]] = True
    return Survivors(
        is_shared,
        unranked,
        num_requests=done["asked"].nunique(),
        num_shared=len(paused),
        num_paused=int(paused.any().sum()),
    )
