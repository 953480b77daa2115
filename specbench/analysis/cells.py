"""Compute the numbers of one cell: one method at one temperature on one task.

`CellSource` selects the rows of every cell from the table of a run's records. A number that
cannot be given is a `Missing` with the reason: never NaN, and never a zero that means
"unknown".

- Speedup: the baseline's time per token / the method's, each summed over the same requests. With
  equal token counts this is the ratio of seconds.
- Decode speedup: this ratio for the tokens after the first, which the prefill emits.
- Published speedup: the method's mean tokens/s over samples / the baseline's mean over the same
  samples. A sample's tokens/s are over all its turns, as in Spec-Bench's evaluation/speed.py.
- Mean accepted tokens (MAT): tokens emitted by steps / steps, over all steps of the cell (micro).
  The macro mean averages the completions' own values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from specbench.analysis.acceptance import DepthAcceptance, acceptance_by_depth, count_steps
from specbench.analysis.latency import Latency, latency
from specbench.analysis.prompts_read import OTHER_PROMPTS
from specbench.analysis.ratios import COLUMNS, RowGroups, RowRatio, cluster_sums, row_ratios
from specbench.analysis.records import BASELINE as BASELINE
from specbench.analysis.records import CELL_KEY, POOLED, RecordTable, answer_of
from specbench.analysis.stats.arrays import IntArray
from specbench.analysis.stats.bootstrap import Draws, Ratio
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.analysis.survivors import Survivors
from specbench.log.header import RunHeader
from specbench.log.run import NO_LOAD, Load

if TYPE_CHECKING:
    from pandas import DataFrame

NOT_RUN = Missing("not run")
NO_CHECKPOINT = Missing("no checkpoint")
ALL_FAILED = Missing("all failed")
NO_BASELINE = Missing("no baseline")
BASELINE_FAILED = Missing("baseline failed")
NO_SHARED = Missing("no shared samples")
NO_STEPS = Missing("no steps")
NOT_GREEDY = Missing("temperature above 0")
NO_TIMES = Missing("no times in the imported files")
NO_ANSWERS = Missing("no answers in the imported files")
WITH_PHASES = Missing("the phases of steps were timed, which slows them down")
"""To time the phases, each step waits for the device at the end of each phase, so such times are no
evidence of speed.
"""

Arithmetic = Literal["ours", "paper"]
"""The formula of the speedup. `paper` is the published formula."""


@dataclass(frozen=True, slots=True)
class CellKey:
    """A method at a temperature, on a task and at a load."""

    method: str
    temperature: float
    task: str
    load: Load = NO_LOAD


@dataclass(frozen=True, slots=True)
class CellMetrics:
    """The numbers of one cell.

    All except `num_done`, `num_failed` and `first_error` cover only requests that every ranked
    method finished without a pause of the machine. A method is ranked on a task if it finished at
    least half of the task's requests.
    """

    speedup: Value
    """The speedup by the requested formula: `our_speedup` or `paper_speedup`."""

    our_speedup: Value
    paper_speedup: Value
    decode_speedup: Value
    mat: Value
    mat_macro: Value
    tokens_per_s: Value

    match_rate: Value
    """The share of the `num_pairs` completions that equal the baseline's, at temperature 0."""

    accept_histogram: Mapping[int, int]
    """Number of emitted tokens -> number of steps."""

    acceptance_by_depth: tuple[DepthAcceptance, ...]
    latency: Latency
    num_samples: int

    num_pairs: int
    """The completions of requests that vanilla finished too."""

    num_done: int
    """The completions that did not fail, whether or not they are compared."""

    num_failed: int
    num_tokens: int
    num_steps: int
    """The steps that the records list. 0 if a server only counts steps, even if MAT is known."""
    first_error: str | None


def _estimates(table: RecordTable, rows: IntArray, draws: Draws | None) -> dict[str, Estimate]:
    """Compute the speedups, tokens/s and mean accepted tokens of a cell: metric -> estimate.

    A metric is left out if none of the rows has all the numbers that it needs.

    Args:
        table: has a row per completion.
        rows: numbers of the completions that count.
        draws: resamples the clusters (samples) of rows, for intervals. None for no intervals.
    """
    # column name -> counts or seconds that the metrics need [rows]
    columns = dict(zip(COLUMNS, table.values(rows, *COLUMNS), strict=True))
    groups = table.groups(rows)  # each row's sample, pass (or run of a pool) and request
    ratios: dict[str, Ratio] = {}  # metric -> ratio of sums over samples
    for name, row_ratio in row_ratios(columns).items():
        if not row_ratio.where.any():  # `where` [rows] is true for rows with all numbers
            continue
        ratios[name] = row_ratio.summed(groups)
        if name == "speedup":  # the published formula uses the same rows
            ratios["paper_speedup"] = _paper_ratio(table, rows[row_ratio.where])
    if draws is None:
        return {name: ratio.estimate for name, ratio in ratios.items()}  # without intervals
    return {name: draws.estimate(ratio) for name, ratio in ratios.items()}


def _paper_ratio(table: RecordTable, rows: IntArray) -> Ratio:
    """Compute the published speedup: the mean of the method's tokens/s / the mean of vanilla's.

    The means are over visits: a visit is a sample (cluster) in a pass, with all its turns. `rows`
    are the numbers of the completions that count. The ratio is kept as sums per sample.
    """
    # For each row: the numbers of its sample, its unit (a pass, or a run of a pool) and its pass.
    clusters, unit_of_row, passes = table.values(rows, "cluster", "unit", "repeat")
    shape = (1 + clusters.max(), 1 + passes.max())  # a visit's coordinates: sample and pass
    row_visits = np.ravel_multi_index((clusters, passes), shape)  # numbers of visits: [rows]
    visits, first_rows, visit_of_row = np.unique(row_visits, return_index=True, return_inverse=True)
    cluster_of_visit, _ = np.unravel_index(visits, shape)  # [visits]
    columns = table.values(rows, "num_tokens", "wall_s", "baseline_num_tokens", "baseline_wall_s")
    sums = cluster_sums(visit_of_row, columns)  # of the method, of vanilla [visits, 4]
    num_tokens, wall_s, base_num_tokens, base_wall_s = sums.T
    tokens_per_s = num_tokens / wall_s
    base_tokens_per_s = base_num_tokens / base_wall_s
    is_counted = np.ones(len(visits), dtype=bool)  # all visits
    groups = RowGroups(
        clusters=cluster_of_visit,
        units=unit_of_row[first_rows],
        requests=cluster_of_visit,  # all turns of a visit together are one request
        num_units=table.num_units,
    )
    ratio = RowRatio(is_counted, top=(tokens_per_s,), bottom=(base_tokens_per_s,))
    return ratio.summed(groups)


class CellSource:
    """The source of a run's cells. It selects the rows of each cell from the table of records."""

    def __init__(
        self,
        table: RecordTable,
        header: RunHeader,
        survivors: Survivors,
        no_times: Missing | None,
    ) -> None:
        """`no_times` is the reason why times are not evidence of speed; None if they are."""
        self._table = table
        self._survivors = survivors
        self._no_times = no_times
        self._no_checkpoint: Collection[str] = header.no_checkpoint
        self._is_measured = table.columns["is_measured"]
        self._rows = rows_by_cell(table.frame)

    def measure_cell(
        self, key: CellKey, draws: Draws | None, arithmetic: Arithmetic
    ) -> CellMetrics:
        """Compute the numbers of a cell, with a reason for each missing number.

        They cover the requests that every ranked method finished (see `CellMetrics`). `draws`
        resamples the samples for intervals; None for no intervals. `arithmetic` selects `speedup`.
        """
        table = self._table
        all_rows = self._rows_of(key)  # numbers of the cell's records, including failed ones
        is_measured = self._is_measured[all_rows]
        failed_rows = all_rows[~is_measured]
        rows = all_rows[self._survivors.is_shared[all_rows]]  # rows that count
        num_done = int(is_measured.sum())

        # For each row: sample, tokens, row of vanilla's answer (or -1), True if the two are equal.
        sample_numbers, num_tokens, baseline_rows, is_equal = table.values(
            rows, "cluster", "num_tokens", "baseline_row", "is_same"
        )
        step_counts = count_steps(table, rows)  # only steps that the records list
        num_pairs = int((baseline_rows >= 0).sum())  # rows that vanilla answered too

        # The reasons why all numbers, all times, or all ratios to vanilla are missing. The first
        # two are None if there is no such reason. `a or b or c` takes the first that is not None.
        no_rows = None if len(rows) else self._reason_for_no_rows(key, all_rows, num_done)
        no_times = no_rows or self._no_times
        no_pairs = self._reason_for_no_pairs(key)

        estimate_by_name = _estimates(table, rows, draws)
        our_speedup = no_times or estimate_by_name.get("speedup") or no_pairs
        paper_speedup = no_times or estimate_by_name.get("paper_speedup") or no_pairs
        no_decode_speedup = NO_STEPS if num_pairs else no_pairs
        match_rate: Value = no_pairs
        if key.temperature > 0:
            match_rate = NOT_GREEDY
        elif num_pairs and not any(answer_of(table.records[row]) for row in rows):  # tokens or text
            match_rate = NO_ANSWERS
        elif num_pairs:
            match_rate = Estimate(float(is_equal.sum()) / num_pairs)
        errors = (table.records[row].error for row in failed_rows)  # messages, or None
        return CellMetrics(
            speedup=paper_speedup if arithmetic == "paper" else our_speedup,
            our_speedup=our_speedup,
            paper_speedup=paper_speedup,
            decode_speedup=no_times or estimate_by_name.get("decode_speedup") or no_decode_speedup,
            mat=estimate_by_name.get("mat") or no_rows or NO_STEPS,
            mat_macro=estimate_by_name.get("mat_macro") or no_rows or NO_STEPS,
            tokens_per_s=no_times or estimate_by_name.get("tokens_per_s") or ALL_FAILED,
            match_rate=no_rows or match_rate,
            accept_histogram=step_counts.histogram,
            acceptance_by_depth=acceptance_by_depth(step_counts, draws),
            latency=latency(table, rows, no_times),
            num_samples=len(np.unique(sample_numbers)),
            num_pairs=num_pairs,
            num_done=num_done,
            num_failed=len(failed_rows),
            num_tokens=int(num_tokens.sum()),
            num_steps=int(step_counts.steps.sum()),
            first_error=next(filter(None, errors), None),
        )

    @property
    def shared_rows(self) -> dict[CellKey, IntArray]:
        """The rows of each cell on which methods are compared, plus its failed rows."""
        is_kept = self._survivors.is_shared | ~self._is_measured
        return {key: rows[is_kept[rows]] for key, rows in self._rows.items()}

    def _rows_of(self, key: CellKey) -> IntArray:
        """Return all rows of a cell, including failed ones."""
        return self._rows.get(key, np.empty(0, dtype=np.intp))

    def _reason_for_no_pairs(self, key: CellKey) -> Missing:
        """Return why a cell has no ratios to vanilla, if vanilla answered none of its requests."""
        baseline_rows = self._rows_of(replace(key, method=BASELINE))
        if not len(baseline_rows):
            return NO_BASELINE
        if not self._is_measured[baseline_rows].any():
            return BASELINE_FAILED
        # `other_row`: row of vanilla's record if its server read another prompt, else -1
        has_other = self._table.columns["other_row"][self._rows_of(key)] >= 0
        return OTHER_PROMPTS if has_other.any() else NO_SHARED

    def _reason_for_no_rows(self, key: CellKey, all_rows: IntArray, num_done: int) -> Missing:
        """Return why the cell has no row on which methods are compared.

        `all_rows` are the numbers of the cell's records; `num_done` of these did not fail.
        """
        if not len(all_rows):  # `_no_checkpoint`: methods without a checkpoint for this target
            return NO_CHECKPOINT if key.method in self._no_checkpoint else NOT_RUN
        if not num_done:
            return ALL_FAILED
        # The number of finished requests if it is too small to rank the method on the task. None
        # if no request was finished by all ranked methods without a pause, or for a pooled cell.
        finished = self._survivors.unranked.get((key.method, key.temperature, key.task))
        if finished is None:
            return NO_SHARED
        return Missing(f"not comparable: finished {finished.num_done} of {finished.num_by_any}")


def rows_by_cell(frame: DataFrame) -> dict[CellKey, IntArray]:
    """List the numbers of each cell's records, with cells in the order of their first records.

    `frame` has one row per record. There is a cell per method, temperature and task, and one per
    method and temperature for all tasks together, with the task `POOLED`.
    """
    # (method, temperature, task) -> numbers of records
    rows_by_names: dict[Any, IntArray] = frame.groupby(CELL_KEY, observed=True, sort=False).indices
    over_tasks = CELL_KEY[:2]  # the columns of method and temperature
    pooled_rows: dict[Any, IntArray] = frame.groupby(over_tasks, observed=True, sort=False).indices
    rows_of_cell = {CellKey(*names): rows for names, rows in rows_by_names.items()}
    rows_of_cell |= {
        CellKey(method, temperature, POOLED): rows
        for (method, temperature), rows in pooled_rows.items()
    }
    # A task's cell and the pooled cell may have the same first record: the pooled cell is second.
    cells_in_order = sorted(
        rows_of_cell, key=lambda cell: (rows_of_cell[cell][0], cell.task == POOLED)
    )
    return {cell: rows_of_cell[cell] for cell in cells_in_order}
