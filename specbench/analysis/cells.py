"""The numbers of one cell: one method at one temperature on one task.

Knows the definitions. Wherever a number cannot be given, a `Missing` with the reason stands
instead: never NaN, and never a zero that means "unknown".

- Speedup: time per token of the baseline / time per token of the method, each summed over the same
  (sample, turn, repeat) finished by both. With equal token counts this is the ratio of seconds.
- Decode speedup: the same for what follows the first token, whose time is the prefill's.
- Mean accepted tokens (MAT): tokens emitted by steps / steps, over all steps of the cell (micro).
  The macro mean averages the completions' own values.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.stats import Draws, Estimate, FloatArray, Missing, Ratio, Value
from specbench.types import Record

NOT_RUN = Missing("not run")
NO_CHECKPOINT = Missing("no checkpoint")
ALL_FAILED = Missing("all failed")
NO_BASELINE = Missing("no baseline")
BASELINE_FAILED = Missing("baseline failed")
NO_SHARED = Missing("no shared samples")
NO_STEPS = Missing("no steps")
NOT_GREEDY = Missing("temperature above 0")

IntArray: TypeAlias = NDArray[np.intp]
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
    """

    speedup: Value
    decode_speedup: Value
    mat: Value
    mat_macro: Value
    tokens_per_s: Value
    match_rate: Value
    accept_histogram: Mapping[int, int]
    num_samples: int
    num_pairs: int
    num_done: int
    num_failed: int
    num_tokens: int
    num_steps: int
    first_error: str | None


@dataclass(frozen=True, slots=True)
class CellRecords:
    """What a cell is measured from. `blank` is what to say where there are no records."""

    key: CellKey
    own: Sequence[Record]
    baseline: Sequence[Record]
    blank: Missing = NOT_RUN


def measure_cell(cell: CellRecords, draws: Draws | None = None) -> CellMetrics:
    """The numbers of a cell, with intervals where there are draws."""
    done = [record for record in cell.own if is_measured(record)]
    base = _partners(done, cell.baseline)
    values = _values(_Sides(done, base), draws)
    histogram = Counter[int]()
    for record in done:
        histogram.update(record.accept_lengths)
    missing = None if done else ALL_FAILED if cell.own else cell.blank
    pairs = [(own, other) for own, other in zip(done, base, strict=True) if other is not None]
    unpaired = _why_unpaired(cell.baseline)
    return CellMetrics(
        speedup=values["speedup"] or missing or unpaired,
        decode_speedup=values["decode_speedup"] or missing or (NO_STEPS if pairs else unpaired),
        mat=values["mat"] or missing or NO_STEPS,
        mat_macro=values["mat_macro"] or missing or NO_STEPS,
        tokens_per_s=values["tokens_per_s"] or missing or ALL_FAILED,
        match_rate=missing or _match_rate(cell.key, pairs, unpaired),
        accept_histogram=dict(sorted(histogram.items())),
        num_samples=len({_cluster(record) for record in done}),
        num_pairs=len(pairs),
        num_done=len(done),
        num_failed=len(cell.own) - len(done),
        num_tokens=sum(record.num_tokens for record in done),
        num_steps=histogram.total(),
        first_error=next((record.error for record in cell.own if record.error), None),
    )


def is_measured(record: Record) -> bool:
    """Whether a record has tokens and times; what has not counts as failed."""
    return record.is_ok and record.num_tokens > 0 and 0.0 < (record.wall_s or 0.0) < math.inf


def _partners(done: Sequence[Record], baseline: Sequence[Record]) -> list[Record | None]:
    """The baseline's record of the same completion, for every record that has one."""
    measured = {_completion(record): record for record in baseline if is_measured(record)}
    return [measured.get(_completion(record)) for record in done]


def _why_unpaired(baseline: Sequence[Record]) -> Missing:
    if not baseline:
        return NO_BASELINE
    return NO_SHARED if any(map(is_measured, baseline)) else BASELINE_FAILED


@dataclass(frozen=True, slots=True)
class _Sides:
    """The measured records of a cell and the baseline's partner of each."""

    own: Sequence[Record]
    base: Sequence[Record | None]


def _values(sides: _Sides, draws: Draws | None) -> dict[str, Estimate | None]:
    """The five ratios; None where no record has what one needs."""
    own, base = _columns(sides.own), _columns(sides.base)
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
    clusters = _cluster_indices(sides.own)
    ratios = {
        name: Ratio(_sums(clusters[rows], rows, top), _sums(clusters[rows], rows, bottom))
        for name, (rows, top, bottom) in terms.items()
        if rows.any()
    }
    estimates = draws.estimates(ratios) if draws else {n: r.estimate for n, r in ratios.items()}
    return {name: estimates.get(name) for name in terms}


@dataclass(frozen=True, slots=True)
class _Columns:
    """The numbers of some records, an array each: [records]. Zeros where there is no record."""

    wall_s: FloatArray
    decode_s: FloatArray
    tokens: FloatArray
    emitted: FloatArray
    steps: FloatArray


def _columns(records: Sequence[Record | None]) -> _Columns:
    rows = [
        (0.0, 0.0, 0.0, 0.0, 0.0)
        if record is None
        else (
            record.wall_s or 0.0,
            record.decode_s or 0.0,
            record.num_tokens,
            sum(record.accept_lengths),
            len(record.accept_lengths),
        )
        for record in records
    ]
    return _Columns(*np.array(rows, dtype=np.float64).reshape(-1, 5).T)


def _cluster_indices(records: Sequence[Record]) -> IntArray:
    """The number of each record's cluster. Clusters are sorted, so that the order in which records
    were written changes no interval.
    """
    names = [_cluster(record) for record in records]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    return np.array([number[name] for name in names], dtype=np.intp)


def _sums(clusters: IntArray, rows: NDArray[np.bool_], columns: Sequence[FloatArray]) -> FloatArray:
    """The columns summed per cluster, over these rows: [clusters, columns]."""
    _, dense = np.unique(clusters, return_inverse=True)
    return np.stack([np.bincount(dense, weights=column[rows]) for column in columns], axis=1)


def _match_rate(key: CellKey, pairs: Sequence[_Pair], otherwise: Missing) -> Value:
    if key.temperature > 0:
        return NOT_GREEDY
    if not pairs:
        return otherwise
    return Estimate(sum(base.token_ids == own.token_ids for base, own in pairs) / len(pairs))


def _cluster(record: Record) -> tuple[str, str]:
    return record.key.task, record.key.sample_id


def _completion(record: Record) -> tuple[str, str, int, int]:
    key = record.key
    return key.task, key.sample_id, key.turn, key.repeat
