"""The numbers of one cell: one method at one temperature on one task.

Knows the definitions. Wherever a number cannot be given, a `Missing` with the reason stands
instead: never NaN, and never a zero that means "unknown".

- Speedup: time per token of the baseline / time per token of the method, each summed over the same
  (sample, turn, repeat) finished by both. With equal token counts this is the ratio of seconds.
- Decode speedup: the same for what follows the first token, whose time is the prefill's.
- Published speedup: mean over samples of the method's tokens/s / the same of the baseline, over the
  same samples. A sample's tokens/s are over all its turns, as in Spec-Bench's evaluation/speed.py.
- Mean accepted tokens (MAT): tokens emitted by steps / steps, over all steps of the cell (micro).
  The macro mean averages the completions' own values.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specbench.analysis.columns import (
    BoolArray,
    Columns,
    IntArray,
    Table,
    sums,
)
from specbench.analysis.latency import Latency, latency, missing_latency
from specbench.analysis.positions import Position, acceptance, count_steps
from specbench.analysis.stats import Draws, Estimate, Missing, Ratio, Value
from specbench.types import Record

BASELINE = "vanilla"

NOT_RUN = Missing("not run")
NO_CHECKPOINT = Missing("no checkpoint")
ALL_FAILED = Missing("all failed")
NO_BASELINE = Missing("no baseline")
BASELINE_FAILED = Missing("baseline failed")
NO_SHARED = Missing("no shared samples")
NO_STEPS = Missing("no steps")
NOT_GREEDY = Missing("temperature above 0")
WITH_PHASES = Missing("run with --phases")
"""Measuring a step's phases waits for the device within the step: its times are no evidence."""

Arithmetic = Literal["ours", "paper"]
"""How tokens and seconds become a speedup: `paper` is the published formula."""


@dataclass(frozen=True, slots=True)
class CellKey:
    """One method at one temperature on one task."""

    method: str
    temperature: float
    task: str


@dataclass(frozen=True, slots=True)
class CellMetrics:
    """The numbers of one cell. `num_samples` counts the samples with a finished completion, the
    other counts are of completions. `accept_histogram` maps tokens per step to steps.
    `match_rate` is the share of completions with the baseline's token ids, at temperature 0.
    `speedup` is by the arithmetic asked for, the two below by theirs always.
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
    positions: tuple[Position, ...]
    latency: Latency
    num_samples: int
    num_pairs: int
    num_done: int
    num_failed: int
    num_tokens: int
    num_steps: int
    first_error: str | None


@dataclass(frozen=True, slots=True, eq=False)
class CellRows:
    """What a cell is measured from: rows of a table of measured records, and what became of the
    others. `blank` says why there are no records, `unpaired` why none has a partner, where that is
    so, and `no_times` why the times of the records count for nothing, if they do.
    """

    key: CellKey
    table: Table
    rows: IntArray
    failed: Sequence[Record] = ()
    blank: Missing = NOT_RUN
    unpaired: Missing = NO_BASELINE
    no_times: Missing | None = None
    arithmetic: Arithmetic = "ours"


@dataclass(frozen=True, slots=True)
class CellRecords:
    """A cell as records, where there is one to measure."""

    key: CellKey
    own: Sequence[Record]
    baseline: Sequence[Record]


def measure_cell(cell: CellRecords, draws: Draws | None = None) -> CellMetrics:
    """The numbers of a single cell."""
    own, base = split(cell.own), split(cell.baseline)
    records = [*own.measured, *base.measured]
    table = Table(records, range(len(own.measured), len(records)))
    unpaired = why_unpaired(base)
    rows = np.arange(len(own.measured))
    return measure_rows(CellRows(cell.key, table, rows, own.failed, unpaired=unpaired), draws)


def measure_rows(cell: CellRows, draws: Draws | None = None) -> CellMetrics:
    """The numbers of a cell, with intervals where there are draws."""
    table, rows = cell.table, cell.rows
    own = table.columns.take(rows)
    values = _values(cell, own, draws)
    steps = count_steps(table, rows)
    num_pairs = int((table.partners[rows] >= 0).sum())
    blank = None if len(rows) else ALL_FAILED if cell.failed else cell.blank
    no_times = blank or cell.no_times
    ours = no_times or values.get("speedup") or cell.unpaired
    paper = no_times or values.get("paper_speedup") or cell.unpaired
    decoded = values.get("decode_speedup") or (NO_STEPS if num_pairs else cell.unpaired)
    same = Estimate(float(table.is_same[rows].sum()) / num_pairs) if num_pairs else cell.unpaired
    return CellMetrics(
        speedup=paper if cell.arithmetic == "paper" else ours,
        our_speedup=ours,
        paper_speedup=paper,
        decode_speedup=no_times or decoded,
        mat=values.get("mat") or blank or NO_STEPS,
        mat_macro=values.get("mat_macro") or blank or NO_STEPS,
        tokens_per_s=no_times or values.get("tokens_per_s") or ALL_FAILED,
        match_rate=blank or (NOT_GREEDY if cell.key.temperature > 0 else same),
        accept_histogram=steps.histogram,
        positions=acceptance(steps, draws),
        latency=missing_latency(no_times) if no_times else latency(own),
        num_samples=len(np.unique(table.clusters[rows])),
        num_pairs=num_pairs,
        num_done=len(rows),
        num_failed=len(cell.failed),
        num_tokens=int(own.tokens.sum()),
        num_steps=int(own.steps.sum()),
        first_error=next((record.error for record in cell.failed if record.error), None),
    )


def is_measured(record: Record) -> bool:
    """Whether a record has tokens and times; what has not counts as failed."""
    prefill_s, decode_s = record.prefill_s, record.decode_s
    if record.status != "ok" or not record.token_ids or prefill_s is None or decode_s is None:
        return False
    return 0.0 < prefill_s + decode_s < math.inf


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Records by whether there is anything to measure."""

    measured: Sequence[Record]
    failed: Sequence[Record]


def split(records: Iterable[Record]) -> Outcomes:
    """The records, in their order."""
    measured: list[Record] = []
    failed: list[Record] = []
    for record in records:
        (measured if is_measured(record) else failed).append(record)
    return Outcomes(measured, failed)


def why_unpaired(baseline: Outcomes) -> Missing:
    """What to say where no record of a cell has a partner among these."""
    if baseline.measured:
        return NO_SHARED
    return BASELINE_FAILED if baseline.failed else NO_BASELINE


def _values(cell: CellRows, own: Columns, draws: Draws | None) -> dict[str, Estimate]:
    """The six ratios, but for those of which no record has what they need."""
    base = cell.table.columns.take(cell.table.partners[cell.rows])
    clusters = cell.table.clusters[cell.rows]
    is_pair = base.tokens > 0
    has_steps = own.emitted > 0
    is_decoded = is_pair & (own.tokens > 1) & (base.tokens > 1)
    is_decoded &= (own.decode_s > 0) & (base.decode_s > 0)
    own_mat = np.divide(own.emitted, own.steps, out=np.zeros_like(own.steps), where=has_steps)
    one = np.ones_like(own.steps)
    terms = {
        "speedup": (is_pair, (base.wall_s, own.tokens), (base.tokens, own.wall_s)),
        "decode_speedup": (
            is_decoded,
            (base.decode_s, own.tokens - 1),
            (base.tokens - 1, own.decode_s),
        ),
        "mat": (has_steps, (own.emitted,), (own.steps,)),
        "mat_macro": (has_steps, (own_mat,), (one,)),
        "tokens_per_s": (own.tokens > 0, (own.tokens,), (own.wall_s,)),
    }
    ratios = {
        name: Ratio(sums(clusters[rows], top, rows), sums(clusters[rows], bottom, rows))
        for name, (rows, top, bottom) in terms.items()
        if rows.any()
    }
    if is_pair.any():
        ratios["paper_speedup"] = _mean_rates(cell, is_pair, own, base)
    return draws.estimates(ratios) if draws else {n: r.estimate for n, r in ratios.items()}


def _mean_rates(cell: CellRows, is_pair: BoolArray, own: Columns, base: Columns) -> Ratio:
    """The ratio of the mean rates. A sample's rate is over its turns, in each repeat by itself."""
    rows = cell.rows[is_pair]
    passes = np.stack([cell.table.clusters[rows], cell.table.repeats[rows]])
    names, numbers = np.unique(passes, axis=1, return_inverse=True)
    rates = []
    for side in (own, base):
        tokens, wall_s = sums(numbers, (side.tokens, side.wall_s), is_pair).T
        rates.append(sums(names[0], (tokens / wall_s,)))
    return Ratio(*rates)
