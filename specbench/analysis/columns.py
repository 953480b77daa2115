"""Records as arrays, and their sums per cluster, over which the bootstrap draws.

A cluster is a sample with all its turns and repeats, which are not independent of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
