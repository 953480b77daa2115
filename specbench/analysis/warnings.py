"""Warnings about a run's numbers, each with its size and what to do about it.

Knows how a run on one steady machine looks. A warning changes no number: intervals and medians stay
as they are.

Times are compared as seconds a step, which hardly depend on what was accepted, and only between
completions of one method on the same turn of one task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.cells import BASELINE, CellKey, CellMetrics
from specbench.analysis.ranking import Ranking
from specbench.analysis.records import RecordTable
from specbench.analysis.repeats import RepeatSpeedups, find_changing_speedups
from specbench.analysis.speed_warnings import RunWarning, find_speed_warnings
from specbench.analysis.stats.bootstrap import Estimate
from specbench.analysis.stats.trend import Series, relative_change, slow_start
from specbench.analysis.survivors import Survivors
from specbench.analysis.workers import find_slow_workers
from specbench.log.header import RunHeader
from specbench.types import RecordKey

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_DRIFT = 0.05
"""The smallest change over a run, and slowness of its start, that is reported."""
SLOW = 1.5
"""A completion is slow from this many times the median on."""
_MANY, _VERY_SLOW = 0.01, 3.0
"""Outliers are reported from this share of slow completions on, or if one is this slow."""
_FAR = 5.0
"""Robust standard deviations from which on a number is an outlier."""
_LEAST_GROUP = 8
"""Completions that a median and a spread need."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Relative change of the baseline's time a step over the run: 0.1 is 10 % slower."""

    change: Estimate

    def message(self, info: RunHeader) -> str:
        interval = self.change.interval
        direction = "slower" if self.change.value > 0 else "faster"
        ends = sorted(abs(end) for end in (interval.low, interval.high)) if interval else ()
        span = f" (95 % CI {' to '.join(_percent(end) for end in ends)} %)" if ends else ""
        return (
            f"Vanilla got {_percent(abs(self.change.value))} % {direction} during the run{span}. "
            "Speedups suffer less than tokens/s, since methods alternate. Repeat the run on an "
            "idle, cooled machine with fixed clocks, or with --repeats."
        )


@dataclass(frozen=True, slots=True)
class UnsteadyStart:
    """The first `num_slow` completions took `ratio` times as long a step as the later ones."""

    num_slow: int
    num_measured: int
    last: RecordKey
    ratio: float

    def message(self, info: RunHeader) -> str:
        return (
            f"The first {self.num_slow} of {self.num_measured} completions, up to "
            f"{self.last.sample_id} in pass {self.last.repeat + 1}, took {self.ratio:.2f} times as "
            "long a step as later ones: the machine was not steady yet. Distrust these samples, "
            "and repeat the run on the warm machine; more passes (--repeats) give them less weight."
        )


@dataclass(frozen=True, slots=True)
class SlowFirst:
    """A method's first completion took `ratio` times as long a step as the others of its group."""

    key: RecordKey
    ratio: float

    def message(self, info: RunHeader) -> str:
        return (
            f"The first completion of {info.method(self.key.method).label} took {self.ratio:.1f} "
            f"times as long a step as the others on {info.task_title(self.key.task)}. The warm-up "
            "missed some one-time work. --repeats gives it less weight."
        )


@dataclass(frozen=True, slots=True)
class Outliers:
    """Completions that took far longer a step than the others of their group."""

    num_slow: int
    num_measured: int
    worst: RecordKey
    worst_ratio: float

    def message(self, info: RunHeader) -> str:
        where = f"{info.method(self.worst.method).label} on {self.worst.sample_id}"
        return (
            f"{self.num_slow} of {self.num_measured} completions took over {SLOW} times as long a "
            f"step as similar ones; the slowest is {where} ({self.worst_ratio:.1f} times). Another "
            "program probably used the machine. The intervals include these completions. Repeat "
            "the run on an idle machine."
        )


@dataclass(frozen=True, slots=True)
class Pauses:
    """Completions that were repeated for a pause of the machine, and those that paused again."""

    num_repeated: int
    num_paused: int

    def message(self, info: RunHeader) -> str:
        again = "None paused again, and their times are of the repeats."
        if self.num_paused:
            again = f"{self.num_paused} paused again: their times are in the results."
        return (
            f"The machine paused during {self.num_repeated} completions, which were repeated once. "
            f"{again} Keep the machine from sleeping, and stop other programs."
        )


@dataclass(frozen=True, slots=True)
class ChangingSpeedups:
    """Methods at one temperature whose speedup changes between passes by more than chance."""

    methods: tuple[RepeatSpeedups, ...]

    def message(self, info: RunHeader) -> str:
        parts = [
            f"{info.method(one.method).label} {', '.join(f'{x:.2f}x' for x in one.speedups)}"
            for one in self.methods
        ]
        return (
            f"Speedups changed between passes over the same prompts at "
            f"T={self.methods[0].temperature:g}: {'; '.join(parts)}. The machine causes this. "
            "Intervals cover it, but another run may differ by more. Use an idle machine with "
            "fixed clocks, and --runs 5."
        )


def find_warnings(
    table: RecordTable,
    cells: Mapping[CellKey, CellMetrics],
    rankings: Mapping[float, Ranking],
    survivors: Survivors,
) -> tuple[RunWarning, ...]:
    """All warnings about a run. The records of `table` stand in the order in which they ran."""
    steps = _step_times(table.frame)
    return (
        *_pauses(table),
        *_drift(steps, len(table.records)),
        *_unsteady_start(table, steps),
        *_slow(table, steps),
        *_changing(table.frame),
        *find_slow_workers(steps),
        *find_speed_warnings(table, cells, rankings, survivors),
    )


_GROUP = ["method", "temperature", "task", "turn"]


def _step_times(frame: DataFrame) -> DataFrame:
    """Measured completions with steps: `step_s`, and how it compares to the median of its group.

    `ratio` is `step_s` / the median. `is_far` tells if it lies far above the median, in units of
    the median absolute deviation of the logarithms (Iglewicz and Hoaglin 1993), at least 5 %.
    """
    is_timed = frame["is_measured"] & (frame["num_steps"] > 0) & (frame["decode_s"] > 0)
    steps = frame.loc[is_timed, [*_GROUP, "num_steps", "decode_s", "worker", "cluster"]]
    groups = [steps[name] for name in _GROUP]
    steps["step_s"] = steps["decode_s"] / steps["num_steps"]
    logs = np.log(steps["step_s"])
    above = logs - logs.groupby(groups, observed=True).transform("median")
    spread = 1.4826 * above.abs().groupby(groups, observed=True).transform("median")
    size = logs.groupby(groups, observed=True).transform("size")
    steps["ratio"] = np.exp(above)
    steps["is_far"] = (above > _FAR * spread.clip(lower=0.05)) & (size >= _LEAST_GROUP)
    return steps


def _pauses(table: RecordTable) -> Iterable[Pauses]:
    counts = [record.num_paused for record in table.records if record.num_paused]
    return [Pauses(len(counts), sum(count > 1 for count in counts))] if counts else []


def _drift(steps: DataFrame, num_records: int) -> Iterable[Drift]:
    """The trend of the baseline alone: other methods share its machine, not its steps."""
    baseline = steps[steps["method"] == BASELINE]
    groups = [
        Series(group.index.to_numpy() / num_records, group["step_s"].to_numpy())
        for _, group in baseline.groupby(_GROUP, observed=True, sort=False)
    ]
    change = relative_change(groups)
    if change is None or change.interval is None or 0.0 in change.interval:
        return []
    return [Drift(change)] if abs(change.value) >= LEAST_DRIFT else []


def _unsteady_start(table: RecordTable, steps: DataFrame) -> Iterable[UnsteadyStart]:
    """A slow start of the run, in all methods and tasks together."""
    logs = np.log(steps["ratio"].to_numpy())
    if num_slow := slow_start(logs, math.log1p(LEAST_DRIFT)):
        ratio = math.exp(float(np.median(logs[:num_slow]) - np.median(logs[num_slow:])))
        last = table.records[steps.index[num_slow - 1]].key
        yield UnsteadyStart(num_slow, len(steps), last=last, ratio=ratio)


def _slow(table: RecordTable, steps: DataFrame) -> Iterable[RunWarning]:
    """Slow first completions, then the outliers among the others."""
    slow = steps[steps["is_far"] & (steps["ratio"] > SLOW)]
    is_first = slow.index.isin(steps.drop_duplicates("method").index)
    for row, ratio in slow.loc[is_first, "ratio"].items():
        yield SlowFirst(table.records[row].key, float(ratio))
    ratios = slow.loc[~is_first, "ratio"]
    if len(ratios) and (len(ratios) >= _MANY * len(steps) or ratios.max() >= _VERY_SLOW):
        worst = table.records[ratios.idxmax()].key
        yield Outliers(len(ratios), len(steps), worst=worst, worst_ratio=float(ratios.max()))


def _changing(frame: DataFrame) -> Iterable[ChangingSpeedups]:
    by_temperature: dict[float, list[RepeatSpeedups]] = defaultdict(list)
    for one in find_changing_speedups(frame):
        by_temperature[one.temperature].append(one)
    return [ChangingSpeedups(tuple(methods)) for methods in by_temperature.values()]


def _percent(share: float) -> str:
    return f"{share * 100:.0f}"
