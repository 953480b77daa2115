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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from specbench.analysis.columns import (
    BoolArray,
    Columns,
    IntArray,
    cluster_indices,
    columns,
    completion,
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

_Pair: TypeAlias = tuple[Record, Record]


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


@dataclass(frozen=True, slots=True)
class CellRecords:
    """What a cell is measured from. `blank` is what to say where there are no records, `no_times`
    why the times of the records count for nothing, if they do.
    """

    key: CellKey
    own: Sequence[Record]
    baseline: Sequence[Record]
    blank: Missing = NOT_RUN
    no_times: Missing | None = None
    arithmetic: Arithmetic = "ours"


def measure_cell(cell: CellRecords, draws: Draws | None = None) -> CellMetrics:
    """The numbers of a cell, with intervals where there are draws."""
    done = [record for record in cell.own if is_measured(record)]
    sides = _Sides(done, _partners(done, cell.baseline), cluster_indices(done))
    own = columns(done)
    values = _values(sides, own, columns(sides.base), draws)
    steps = count_steps(done, sides.clusters)
    pairs = [(mine, base) for mine, base in zip(done, sides.base, strict=True) if base is not None]
    unpaired = _why_unpaired(cell.baseline)
    blank = None if done else ALL_FAILED if cell.own else cell.blank
    no_times = blank or cell.no_times
    ours = no_times or values.get("speedup") or unpaired
    paper = no_times or values.get("paper_speedup") or unpaired
    decoded = values.get("decode_speedup") or (NO_STEPS if pairs else unpaired)
    return CellMetrics(
        speedup=paper if cell.arithmetic == "paper" else ours,
        our_speedup=ours,
        paper_speedup=paper,
        decode_speedup=no_times or decoded,
        mat=values.get("mat") or blank or NO_STEPS,
        mat_macro=values.get("mat_macro") or blank or NO_STEPS,
        tokens_per_s=no_times or values.get("tokens_per_s") or ALL_FAILED,
        match_rate=blank or _match_rate(cell.key, pairs, unpaired),
        accept_histogram=steps.histogram,
        positions=acceptance(steps, draws),
        latency=missing_latency(no_times) if no_times else latency(own),
        num_samples=len(np.unique(sides.clusters)),
        num_pairs=len(pairs),
        num_done=len(done),
        num_failed=len(cell.own) - len(done),
        num_tokens=int(own.tokens.sum()),
        num_steps=int(steps.steps.sum()),
        first_error=next((record.error for record in cell.own if record.error), None),
    )


def is_measured(record: Record) -> bool:
    """Whether a record has tokens and times; what has not counts as failed."""
    return record.is_ok and record.num_tokens > 0 and 0.0 < (record.wall_s or 0.0) < math.inf


def _partners(done: Sequence[Record], baseline: Sequence[Record]) -> list[Record | None]:
    """The baseline's record of the same completion, for every record that has one."""
    measured = {completion(record): record for record in baseline if is_measured(record)}
    return [measured.get(completion(record)) for record in done]


def _why_unpaired(baseline: Sequence[Record]) -> Missing:
    if not baseline:
        return NO_BASELINE
    return NO_SHARED if any(map(is_measured, baseline)) else BASELINE_FAILED


@dataclass(frozen=True, slots=True)
class _Sides:
    """The measured records of a cell; of each, the baseline's partner and its cluster's number."""

    own: Sequence[Record]
    base: Sequence[Record | None]
    clusters: IntArray


def _values(sides: _Sides, own: Columns, base: Columns, draws: Draws | None) -> dict[str, Estimate]:
    """The six ratios, but for those of which no record has what they need."""
    clusters = sides.clusters
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
        ratios["paper_speedup"] = _mean_rates(sides, is_pair, own, base)
    return draws.estimates(ratios) if draws else {n: r.estimate for n, r in ratios.items()}


def _mean_rates(sides: _Sides, rows: BoolArray, own: Columns, base: Columns) -> Ratio:
    """The ratio of the mean rates. A sample's rate is over its turns, in each repeat by itself."""
    repeats = np.array([record.key.repeat for record in sides.own], dtype=np.intp)[rows]
    names, passes = np.unique(
        np.stack([sides.clusters[rows], repeats]), axis=1, return_inverse=True
    )
    rates = []
    for side in (own, base):
        tokens, wall_s = sums(passes, (side.tokens, side.wall_s), rows).T
        rates.append(sums(names[0], (tokens / wall_s,)))
    return Ratio(*rates)


def _match_rate(key: CellKey, pairs: Sequence[_Pair], otherwise: Missing) -> Value:
    if key.temperature > 0:
        return NOT_GREEDY
    if not pairs:
        return otherwise
    return Estimate(sum(base.token_ids == own.token_ids for base, own in pairs) / len(pairs))
