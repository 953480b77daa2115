"""The numbers of one cell: one method at one temperature on one task.

`CellSource` cuts the rows of every cell from the table of a run's records. A number that
cannot be given is a `Missing` with the reason: never NaN, and never a zero that means
"unknown".

- Speedup: the baseline's time per token / the method's, each summed over the same requests. With
  equal token counts this is the ratio of seconds.
- Decode speedup: the same for the tokens after the first, whose time is the prefill's.
- Published speedup: mean over samples of the method's tokens/s / the same of the baseline, over the
  same samples. A sample's tokens/s are over all its turns, as in Spec-Bench's evaluation/speed.py.
- Mean accepted tokens (MAT): tokens emitted by steps / steps, over all steps of the cell (micro).
  The macro mean averages the completions' own values.
- Latency of single requests: percentiles over completions, since a mean hides the slow ones. The
  time to the first token is the prefill's; the time per output token is the rest of the wall
  time / the tokens after the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from specbench.analysis.acceptance import DepthAcceptance, acceptance_by_depth, count_steps
from specbench.analysis.ratios import COLUMNS, Places, RowRatio, row_ratios
from specbench.analysis.records import BASELINE as BASELINE
from specbench.analysis.records import CELL_KEY, POOLED, RecordTable, Survivors
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Draws, Ratio
from specbench.analysis.stats.estimates import Estimate, Missing, Value
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
WITH_PHASES = Missing("the phases of steps were timed, which slows them down")
"""To measure phases, the clock waits for the device within a step: such times are not evidence."""

Arithmetic = Literal["ours", "paper"]
"""The formula of the speedup; `paper` is the published one."""


@dataclass(frozen=True, slots=True)
class CellKey:
    """One method at one temperature on one task. `load` tells cells of several loads apart."""

    method: str
    temperature: float
    task: str
    load: Load = NO_LOAD


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of seconds over `num` completions."""

    p50: Value
    p90: Value
    p99: Value
    num: int


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of one cell, in seconds."""

    first_token: Percentiles
    per_token: Percentiles


@dataclass(frozen=True, slots=True)
class CellMetrics:
    """The numbers of one cell.

    `speedup` follows the arithmetic that was asked for, `our_speedup` and `paper_speedup`
    always their own. `accept_histogram` maps tokens per step to steps. `match_rate` is the
    share of completions with the baseline's token ids, at temperature 0. All numbers are of
    the completions that every ranked method finished: `num_samples` counts their samples,
    `num_pairs` those that vanilla finished too. `num_done` and `num_failed` count all
    completions.
    """

    speedup: Value
    our_speedup: Value
    paper_speedup: Value
    decode_speedup: Value
    mat: Value
    mat_macro: Value
    tokens_per_s: Value
    match_rate: Value
    accept_histogram: Mapping[int, int]
    acceptance_by_depth: tuple[DepthAcceptance, ...]
    latency: Latency
    num_samples: int
    num_pairs: int
    num_done: int
    num_failed: int
    num_tokens: int
    num_steps: int
    first_error: str | None


def _values(table: RecordTable, rows: IntArray, draws: Draws | None) -> dict[str, Estimate]:
    """The ratios that can be computed from at least one completion."""
    places = table.places(rows)
    found = row_ratios(dict(zip(COLUMNS, table.values(rows, *COLUMNS), strict=True)))
    ratios = {name: one.summed(places) for name, one in found.items() if one.where.any()}
    if "speedup" in ratios:
        ratios["paper_speedup"] = _paper_ratio(table, rows[found["speedup"].where])
    return {n: draws.estimate(r) if draws else r.estimate for n, r in ratios.items()}


def _paper_ratio(table: RecordTable, rows: IntArray) -> Ratio:
    """The ratio of the samples' tokens/s. A rate is over all turns, of each repeat alone."""
    clusters, units, repeats, tokens, wall_s, base_tokens, base_wall_s = table.values(
        rows, "cluster", "unit", "repeat", "num_tokens", "wall_s", "baseline_num_tokens",
        "baseline_wall_s",
    )  # fmt: skip
    num_repeats = 1 + repeats.max()
    names, first, visits = np.unique(
        clusters * num_repeats + repeats, return_index=True, return_inverse=True
    )
    sums = [np.bincount(visits, weights=c) for c in (tokens, wall_s, base_tokens, base_wall_s)]
    top, bottom = sums[0] / sums[1], sums[2] / sums[3]
    samples = names // num_repeats
    places = Places(samples, units[first], samples, table.num_units)
    is_any = np.ones(len(samples), dtype=bool)
    return RowRatio(is_any, (top,), (bottom,)).summed(places)


def latency(table: RecordTable, rows: IntArray, missing: Missing | None) -> Latency:
    """The percentiles, unless there is a reason for none. A completion of one token has no
    time per output token.
    """
    if missing:
        none = Percentiles(missing, missing, missing, 0)
        return Latency(none, none)
    tokens, prefill_s, decode_s = table.values(rows, "num_tokens", "prefill_s", "decode_s")
    has_more = tokens > 1
    return Latency(percentiles(prefill_s), percentiles(decode_s[has_more] / (tokens[has_more] - 1)))


def percentiles(seconds: FloatArray) -> Percentiles:
    """The percentiles of these times [completions], interpolated linearly.

    A percentile is given if at least one completion is expected to be slower: the 99th of 20
    would be a guess about the slowest one.
    """
    p50, p90, p99 = (_percentile(seconds, share) for share in (0.50, 0.90, 0.99))
    return Percentiles(p50, p90, p99, len(seconds))


def _percentile(seconds: FloatArray, share: float) -> Value:
    least = round(1 / (1 - share)) if share > 0.5 else 1
    if len(seconds) < least:
        return Missing(f"fewer than {least} completions" if len(seconds) else "no completion")
    return Estimate(float(np.quantile(seconds, share)))


class CellSource:
    """Cells of a run, cut from the table of its records.

    `no_times` is the reason why the times are not evidence, if they are not.
    """

    def __init__(
        self, table: RecordTable, info: RunHeader, survivors: Survivors, no_times: Missing | None
    ) -> None:
        self._table, self._survivors, self._no_times = table, survivors, no_times
        self._no_checkpoint: Collection[str] = info.no_checkpoint
        self._is_measured = table.columns["is_measured"]
        self._rows = rows_by_cell(table.frame)

    def measure_cell(
        self, key: CellKey, draws: Draws | None, arithmetic: Arithmetic
    ) -> CellMetrics:
        """The numbers of a cell, which may have no rows; with intervals if there are draws.

        They are of the rows that methods are compared on (see `Survivors`).
        """
        table, every = self._table, self._rows_of(key)
        (is_measured,) = table.values(every, "is_measured")
        rows, failed = every[self._survivors.is_shared[every]], every[~is_measured]
        values = _values(table, rows, draws)
        clusters, tokens, partners, is_same = table.values(
            rows, "cluster", "num_tokens", "baseline_row", "is_same"
        )
        steps = count_steps(table, rows)
        num_pairs = int((partners >= 0).sum())
        unpaired = self._unpaired(key)
        blank = None if len(rows) else self._empty(key, every, num_done=int(is_measured.sum()))
        no_times = blank or self._no_times
        ours = no_times or values.get("speedup") or unpaired
        paper = no_times or values.get("paper_speedup") or unpaired
        decode_speedup = values.get("decode_speedup") or (NO_STEPS if num_pairs else unpaired)
        same = Estimate(float(is_same.sum()) / num_pairs) if num_pairs else unpaired
        errors = (table.records[row].error for row in failed)
        return CellMetrics(
            speedup=paper if arithmetic == "paper" else ours,
            our_speedup=ours,
            paper_speedup=paper,
            decode_speedup=no_times or decode_speedup,
            mat=values.get("mat") or blank or NO_STEPS,
            mat_macro=values.get("mat_macro") or blank or NO_STEPS,
            tokens_per_s=no_times or values.get("tokens_per_s") or ALL_FAILED,
            match_rate=blank or (NOT_GREEDY if key.temperature > 0 else same),
            accept_histogram=steps.histogram,
            acceptance_by_depth=acceptance_by_depth(steps, draws),
            latency=latency(table, rows, no_times),
            num_samples=len(np.unique(clusters)),
            num_pairs=num_pairs,
            num_done=int(is_measured.sum()),
            num_failed=len(failed),
            num_tokens=int(tokens.sum()),
            num_steps=int(steps.steps.sum()),
            first_error=next(filter(None, errors), None),
        )

    @property
    def shared_rows(self) -> dict[CellKey, IntArray]:
        """The rows of every cell that methods are compared on, with those that failed."""
        is_kept = self._survivors.is_shared | ~self._is_measured
        return {key: rows[is_kept[rows]] for key, rows in self._rows.items()}

    def _rows_of(self, key: CellKey) -> IntArray:
        """All rows of a cell."""
        return self._rows.get(key, np.empty(0, dtype=np.intp))

    def _unpaired(self, key: CellKey) -> Missing:
        """The reason for missing ratios if vanilla answered none of the cell's requests."""
        baseline = self._rows_of(replace(key, method=BASELINE))
        if not len(baseline):
            return NO_BASELINE
        return NO_SHARED if self._is_measured[baseline].any() else BASELINE_FAILED

    def _empty(self, key: CellKey, rows: IntArray, *, num_done: int) -> Missing:
        """The reason why none of the cell's rows are compared."""
        if not len(rows):
            return NO_CHECKPOINT if key.method in self._no_checkpoint else NOT_RUN
        if not num_done:
            return ALL_FAILED
        counts = self._survivors.unranked.get((key.method, key.temperature, key.task))
        if counts is None:
            return NO_SHARED
        return Missing(f"not comparable: finished {counts[0]} of {counts[1]}")


def rows_by_cell(frame: DataFrame) -> dict[CellKey, IntArray]:
    """The rows of every cell with records, and of all tasks together under `POOLED`.

    Cells stand in the order of their first records.
    """
    by_task: dict[Any, IntArray] = frame.groupby(CELL_KEY, observed=True, sort=False).indices
    pooled: dict[Any, IntArray] = frame.groupby(CELL_KEY[:2], observed=True, sort=False).indices
    cells = {CellKey(*names): rows for names, rows in by_task.items()}
    cells |= {CellKey(names[0], names[1], POOLED): rows for names, rows in pooled.items()}
    return dict(sorted(cells.items(), key=lambda cell: (cell[1][0], cell[0].task == POOLED)))
