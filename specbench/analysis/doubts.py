"""What speaks against trusting a run's numbers, each with its size and with what to do about it.

Knows what a run of one machine at one pace looks like. A doubt changes no number: intervals and
medians stand as they are, and whoever reads them decides.

Times are compared as seconds a step, which hardly depends on what was accepted, and only between
completions of one method on the same turn of one task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specbench.analysis.cells import BASELINE, CellKey, CellMetrics, is_measured
from specbench.analysis.columns import BoolArray
from specbench.analysis.drift import Series, relative_change
from specbench.analysis.header import RunInfo
from specbench.analysis.passes import Passes, moved
from specbench.analysis.stats import Estimate, FloatArray, Value
from specbench.types import Record, SampleKey

LEAST_DRIFT = 0.05
"""A baseline that changes less than this over a run is as steady as one can ask for."""
SLOW = 1.5
"""Times the median from which a completion is called slow."""
_MANY, _VERY_SLOW = 0.01, 3.0
"""The share of slow completions, or the slowness of a single one, from which it is worth a word."""
_FAR = 5.0
"""Robust standard deviations from which a number is far from the others."""
_LEAST_GROUP = 8
"""Completions from which a median and a spread say what is usual."""


class Doubt(Protocol):
    """One reason for doubt: its fields are the data."""

    def sentence(self, info: RunInfo) -> str:
        """What was seen, and what to do."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The baseline's time a step changed over the run; 0.1 is 10 % slower at the end."""

    change: Estimate

    def sentence(self, info: RunInfo) -> str:
        interval = self.change.interval
        way = "slower" if self.change.value > 0 else "faster"
        ends = sorted(abs(end) for end in (interval.low, interval.high)) if interval else ()
        span = f" [{', '.join(_percent(end) for end in ends)}]" if ends else ""
        return (
            f"Vanilla got {_percent(abs(self.change.value))} %{span} {way} while the run went on. "
            "Methods alternate, so that speedups suffer less than tokens/s. Repeat it on an idle "
            "machine, cooled and at a fixed clock, or with --repeats."
        )


@dataclass(frozen=True, slots=True)
class SlowFirst:
    """A method's first completion took `ratio` times as long a step as its like."""

    key: SampleKey
    ratio: float

    def sentence(self, info: RunInfo) -> str:
        return (
            f"The first completion of {info.method(self.key.method).label} took {self.ratio:.1f} "
            f"times as long a step as the others on {_task(info, self.key.task)}: something was "
            "done once that the warm-up did not cover. With --repeats it weighs less."
        )


@dataclass(frozen=True, slots=True)
class Outliers:
    """Completions that took far longer a step than their like; `worst` is the slowest of them."""

    num_slow: int
    num_measured: int
    worst: SampleKey
    worst_ratio: float

    def sentence(self, info: RunInfo) -> str:
        where = f"{info.method(self.worst.method).label} on {self.worst.sample_id}"
        return (
            f"{self.num_slow} of {self.num_measured} completions took over {SLOW} times as long a "
            f"step as their like, {where} {self.worst_ratio:.1f} times: something else used the "
            "machine. The intervals count it in; repeat the run on an idle machine to be rid of it."
        )


@dataclass(frozen=True, slots=True)
class Unsteady:
    """Methods at one temperature whose speedup differs from pass to pass by more than chance."""

    passes: tuple[Passes, ...]

    def sentence(self, info: RunInfo) -> str:
        parts = [
            f"{info.method(one.method).label} {', '.join(f'{x:.2f}x' for x in one.speedups)}"
            for one in self.passes
        ]
        return (
            f"The same prompts gave other speedups in each pass at T="
            f"{self.passes[0].temperature:g}: {'; '.join(parts)}. The machine moves them, not the "
            "prompts, and the intervals do not hold it: another run may differ as much."
        )


@dataclass(frozen=True, slots=True)
class FewSamples:
    """Tasks (name -> samples) with too few samples for an interval."""

    tasks: Mapping[str, int]

    def sentence(self, info: RunInfo) -> str:
        tasks = ", ".join(f"{_task(info, task)} ({n})" for task, n in self.tasks.items())
        return f"Too few samples for an interval: {tasks}. Raise --limit, or use --prompts paper."


@dataclass(frozen=True, slots=True)
class Undecided:
    """Methods at one temperature whose mean speedup is not told apart from 1, each with about how
    many times the samples it would take.
    """

    temperature: float
    methods: Mapping[str, float]

    def sentence(self, info: RunInfo) -> str:
        names = ", ".join(
            f"{info.method(method).label} ({_times(factor)})"
            for method, factor in self.methods.items()
        )
        return (
            f"Not told apart from vanilla at T={self.temperature:g}: {names}. In brackets, how "
            "many times the samples would decide it, should the speedup stay what it is."
        )


def find_doubts(
    records: Sequence[Record],
    cells: Mapping[CellKey, CellMetrics],
    speedups: Mapping[tuple[str, float], Value],
) -> tuple[Doubt, ...]:
    """Every doubt about a run. `records` stand in the order in which they ran."""
    series = _series(records)
    found: list[Doubt | None] = [_drift(series.values(), len(records)), *_slow(series)]
    found.extend(_unsteady(records))
    found.append(_few_samples(cells))
    found.extend(_undecided(speedups))
    return tuple(doubt for doubt in found if doubt is not None)


@dataclass(frozen=True, slots=True, eq=False)
class _Like:
    """Completions of one kind in the order they ran: their places in the run, keys and seconds a
    step.
    """

    places: list[int]
    keys: list[SampleKey]
    step_s: list[float]


def _series(records: Sequence[Record]) -> dict[tuple[str, float, str, int], _Like]:
    """The measured completions with steps, by method, temperature, task and turn."""
    series: dict[tuple[str, float, str, int], _Like] = defaultdict(lambda: _Like([], [], []))
    for place, record in enumerate(records):
        num_steps = len(record.accept_lengths)
        if num_steps and is_measured(record) and (record.decode_s or 0.0) > 0:
            key = record.key
            like = series[key.method, key.temperature, key.task, key.turn]
            like.places.append(place)
            like.keys.append(key)
            like.step_s.append((record.decode_s or 0.0) / num_steps)
    return series


def _drift(series: Iterable[_Like], num_records: int) -> Drift | None:
    """The trend of the baseline alone: methods run beside it share its machine, not its steps."""
    groups = [
        Series(np.array(like.places) / num_records, np.array(like.step_s))
        for like in series
        if like.keys[0].method == BASELINE
    ]
    change = relative_change(groups)
    if change is None or change.interval is None or 0.0 in change.interval:
        return None
    return Drift(change) if abs(change.value) >= LEAST_DRIFT else None


def _slow(series: Mapping[tuple[str, float, str, int], _Like]) -> Iterable[Doubt]:
    """First completions that differ, then the outliers among the others."""
    firsts: dict[str, int] = {}
    for like in series.values():
        method = like.keys[0].method
        firsts[method] = min(like.places[0], firsts.get(method, like.places[0]))
    num_slow = num_measured = 0
    worst: tuple[float, SampleKey] | None = None
    for like in series.values():
        num_measured += len(like.keys)
        if len(like.keys) < _LEAST_GROUP:
            continue
        ratios, is_far = _against_median(np.array(like.step_s))
        is_first = like.places[0] == firsts[like.keys[0].method]
        if is_first and is_far[0] and ratios[0] > SLOW:
            yield SlowFirst(like.keys[0], float(ratios[0]))
            is_far[0] = False
        slow = np.flatnonzero(is_far & (ratios > SLOW))
        num_slow += len(slow)
        for i in slow:
            if worst is None or ratios[i] > worst[0]:
                worst = float(ratios[i]), like.keys[i]
    if worst is not None and (num_slow >= _MANY * num_measured or worst[0] >= _VERY_SLOW):
        yield Outliers(num_slow, num_measured, worst[1], worst[0])


def _against_median(values: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Each value over the median, and whether it lies far above it for the spread there is: the
    median absolute deviation of the logarithms (Iglewicz and Hoaglin 1993), at least 5 %.
    """
    logs = np.log(values)
    off = logs - np.median(logs)
    spread = max(1.4826 * float(np.median(np.abs(off))), 0.05)
    return np.exp(off), off > _FAR * spread


def _unsteady(records: Sequence[Record]) -> Iterable[Unsteady]:
    found: dict[float, list[Passes]] = defaultdict(list)
    for passes in moved(BASELINE, filter(is_measured, records)):
        found[passes.temperature].append(passes)
    return [Unsteady(tuple(passes)) for passes in found.values()]


def _few_samples(cells: Mapping[CellKey, CellMetrics]) -> FewSamples | None:
    few: dict[str, int] = {}
    for key, cell in cells.items():
        numbers = [v for v in (cell.speedup, cell.mat) if isinstance(v, Estimate)]
        has_none = bool(numbers) and numbers[0].interval is None
        if key.task and key.method != BASELINE and has_none:
            few[key.task] = min(cell.num_samples, few.get(key.task, cell.num_samples))
    return FewSamples(few) if few else None


def _undecided(speedups: Mapping[tuple[str, float], Value]) -> Iterable[Undecided]:
    """An interval shrinks with the root of the samples, on the log scale as it was made."""
    found: dict[float, dict[str, float]] = defaultdict(dict)
    for (method, temperature), value in speedups.items():
        interval = value.interval if isinstance(value, Estimate) else None
        if method == BASELINE or interval is None or not interval.low < 1.0 < interval.high:
            continue
        assert isinstance(value, Estimate)
        half = np.log(interval.high / interval.low) / 2
        gap = abs(float(np.log(value.value)))
        found[temperature][method] = float((half / gap) ** 2) if gap else float("inf")
    return [Undecided(temperature, methods) for temperature, methods in found.items()]


def _times(factor: float) -> str:
    if factor > 100:
        return "over 100x"
    return f"{factor:.1f}x" if factor < 9.5 else f"{factor:.0f}x"


def _percent(share: float) -> str:
    return f"{share * 100:.0f}"


def _task(info: RunInfo, task: str) -> str:
    return info.columns.get(task, task)
