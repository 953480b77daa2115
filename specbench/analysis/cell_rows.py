"""The rows of every cell, cut from the table of a run's records.

Knows which records methods are compared on. Computes no number.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.analysis.cells import (
    ALL_FAILED,
    BASELINE_FAILED,
    NO_BASELINE,
    NO_CHECKPOINT,
    NO_SHARED,
    NOT_RUN,
    Cell,
    CellKey,
)
from specbench.analysis.columns import BASELINE, CELL_KEY, POOLED
from specbench.analysis.records import RecordTable
from specbench.analysis.stats.bootstrap import Missing
from specbench.analysis.stats.effects import IntArray
from specbench.analysis.survivors import Survivors
from specbench.log.header import RunHeader

if TYPE_CHECKING:
    from pandas import DataFrame


class CellSource:
    """Cells of a run, cut from the table of its records."""

    def __init__(
        self, table: RecordTable, info: RunHeader, survivors: Survivors, no_times: Missing | None
    ) -> None:
        self._table, self._survivors, self._no_times = table, survivors, no_times
        self._no_checkpoint: Collection[str] = info.no_checkpoint
        self._is_measured = table.columns["is_measured"]
        self.rows = rows_by_cell(table.frame)

    def cell(self, key: CellKey) -> Cell:
        """The rows of a cell, of which there may be none."""
        rows, baseline = self._rows(key), self._rows(replace(key, method=BASELINE))
        is_measured, is_shared = self._is_measured[rows], self._survivors.is_shared[rows]
        unpaired = NO_SHARED if self._is_measured[baseline].any() else BASELINE_FAILED
        return Cell(
            key=key,
            table=self._table,
            rows=rows[is_shared],
            failed=rows[~is_measured],
            empty=self._empty(key, rows, num_done=int(is_measured.sum())),
            unpaired=unpaired if len(baseline) else NO_BASELINE,
            no_times=self._no_times,
            num_done=int(is_measured.sum()),
        )

    @property
    def shared_rows(self) -> dict[CellKey, IntArray]:
        """The rows of every cell that methods are compared on, with those that failed."""
        is_kept = self._survivors.is_shared | ~self._is_measured
        return {key: rows[is_kept[rows]] for key, rows in self.rows.items()}

    def _empty(self, key: CellKey, rows: IntArray, *, num_done: int) -> Missing:
        if not len(rows):
            return NO_CHECKPOINT if key.method in self._no_checkpoint else NOT_RUN
        if not num_done:
            return ALL_FAILED
        counts = self._survivors.unranked.get((key.method, key.temperature, key.task))
        if counts is None:
            return NO_SHARED
        return Missing(f"not comparable: finished {counts[0]} of {counts[1]}")

    def _rows(self, key: CellKey) -> IntArray:
        return self.rows.get(key, np.empty(0, dtype=np.intp))


def rows_by_cell(frame: DataFrame) -> dict[CellKey, IntArray]:
    """The rows of every cell with records, and of all tasks together under `POOLED`.

    Cells stand in the order of their first records.
    """
    by_task: dict[Any, IntArray] = frame.groupby(CELL_KEY, observed=True, sort=False).indices
    pooled: dict[Any, IntArray] = frame.groupby(CELL_KEY[:2], observed=True, sort=False).indices
    cells = {CellKey(*names): rows for names, rows in by_task.items()}
    cells |= {CellKey(names[0], names[1], POOLED): rows for names, rows in pooled.items()}
    return dict(sorted(cells.items(), key=lambda cell: (cell[1][0], cell[0].task == POOLED)))
