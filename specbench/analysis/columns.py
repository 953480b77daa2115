"""Records as arrays, and their sums per cluster, over which the bootstrap draws.

A cluster is a sample with all its turns and repeats, which are not independent of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.stats import FloatArray
from specbench.types import Record

IntArray: TypeAlias = NDArray[np.intp]
BoolArray: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """The numbers of some records, an array each: [records]. Zeros where there is no record."""

    prefill_s: FloatArray
    decode_s: FloatArray
    tokens: FloatArray
    emitted: FloatArray
    steps: FloatArray

    @property
    def wall_s(self) -> FloatArray:
        return self.prefill_s + self.decode_s

    def take(self, rows: IntArray) -> Columns:
        """The numbers of these records; zeros for the row -1."""
        is_there = rows >= 0
        return Columns(*(np.where(is_there, column[rows], 0.0) for column in self._all))

    @property
    def _all(self) -> tuple[FloatArray, ...]:
        return self.prefill_s, self.decode_s, self.tokens, self.emitted, self.steps


def columns(records: Sequence[Record | None]) -> Columns:
    """The arrays of these records."""
    rows = [
        (0.0, 0.0, 0.0, 0.0, 0.0)
        if record is None
        else (
            record.prefill_s or 0.0,
            record.decode_s or 0.0,
            record.num_tokens,
            sum(record.accept_lengths),
            len(record.accept_lengths),
        )
        for record in records
    ]
    return Columns(*np.array(rows, dtype=np.float64).reshape(-1, 5).T)


def cluster_indices(records: Sequence[Record]) -> IntArray:
    """The number of each record's cluster. Clusters are sorted, so that the order in which records
    were written changes no interval.
    """
    names = [_cluster(record) for record in records]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    return np.array([number[name] for name in names], dtype=np.intp)


def sums(
    clusters: IntArray, columns: Sequence[FloatArray], rows: BoolArray | None = None
) -> FloatArray:
    """The columns, or these rows of them, summed per cluster: [clusters, columns]."""
    _, dense = np.unique(clusters, return_inverse=True)
    picked = [column if rows is None else column[rows] for column in columns]
    return np.stack([np.bincount(dense, weights=column) for column in picked], axis=1)


def _cluster(record: Record) -> tuple[str, str]:
    return record.key.task, record.key.sample_id


def completion(record: Record) -> tuple[str, str, int, int]:
    """What a record has in common with the other methods' records of the same request."""
    key = record.key
    return key.task, key.sample_id, key.turn, key.repeat


class Table:
    """Measured records as arrays, made once; a cell is some of its rows.

    `partners` [records] is the row of the baseline's record of the same completion, -1 where there
    is none; `is_same` [records] whether it has the same tokens.
    """

    def __init__(self, records: Sequence[Record], baseline_rows: Iterable[int]) -> None:
        self.columns = columns(records)
        self.clusters = cluster_indices(records)
        self.repeats = np.array([record.key.repeat for record in records], dtype=np.intp)
        row_of = {_place(records[row]): row for row in baseline_rows}
        rows = [row_of.get(_place(record), -1) for record in records]
        self.partners = np.array(rows, dtype=np.intp)
        self.is_same = np.array(
            [
                row >= 0 and record.token_ids == records[row].token_ids
                for record, row in zip(records, rows, strict=True)
            ],
            dtype=bool,
        )
        self._ends = self.columns.steps.astype(np.intp).cumsum()
        self._lengths = np.fromiter(
            chain.from_iterable(record.accept_lengths for record in records),
            dtype=np.intp,
            count=int(self._ends[-1]) if len(records) else 0,
        )
        self.is_cut = np.array([_is_cut(record) for record in records], dtype=bool)

    def lengths(self, rows: IntArray) -> IntArray:
        """The accept lengths [steps] of these records, one record after the other."""
        counts = self.columns.steps[rows].astype(np.intp)
        shift = self._ends[rows] - counts.cumsum()  # from a place in the result to one in the table
        return self._lengths[np.arange(counts.sum()) + np.repeat(shift, counts)]


def _place(record: Record) -> tuple[float, str, str, int, int]:
    return record.key.temperature, *completion(record)


def _is_cut(record: Record) -> bool:
    """Whether the last step may have accepted a guess that cannot be told from the bonus token."""
    lengths, nodes = record.accept_lengths, record.num_nodes
    return bool(lengths) and (not nodes or nodes[-1] != lengths[-1])
