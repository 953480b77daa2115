"""Warnings about a run's numbers, each with its size and what to do about it.

Knows how a run on one steady machine looks. A warning changes no number: intervals and medians stay
as they are.

Times are compared as seconds a step, which hardly depend on what was accepted, and only between
completions of one method on the same turn of one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.cells import CellKey, CellMetrics
from specbench.analysis.columns import BASELINE
from specbench.analysis.ranking import Ranking
from specbench.analysis.ratios import cluster_sums
from specbench.analysis.records import RecordTable
from specbench.analysis.speed_warnings import RunWarning, find_speed_warnings
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.effects import EXACT
from specbench.analysis.stats.significance import ALPHA, slower
from specbench.analysis.survivors import Survivors
from specbench.log.header import RunHeader
from specbench.types import RecordKey

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_SLOWER = 0.05
"""Steps have to be slower by more than this: less is usual on machines without fixed clocks."""
SLOW = 1.5
"""A completion is slow from this many times the median on."""
_MANY, _VERY_SLOW = 0.01, 3.0
"""Outliers are reported from this share of slow completions on, or if one is this slow."""
_FAR = 5.0
"""Robust standard deviations from which on a number is an outlier."""
_LEAST_GROUP = 8
"""Completions that a median and a spread need."""


@dataclass(frozen=True, slots=True)
class Throttling:
    """`change` is vanilla's time a step at the end of the run / at its start, less 1."""

    change: float

    def message(self, info: RunHeader) -> str:
        return (
            f"Vanilla's steps took {self.change * 100:.0f} % longer in the last third of its "
            "requests than in the first: the machine got slower. Speedups suffer less than "
            "tokens/s, since methods alternate. Repeat the run on an idle, cooled machine with "
            "fixed clocks."
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
    """Requests during which the machine paused: they are left out for all methods."""

    num_paused: int
    num_requests: int

    def message(self, info: RunHeader) -> str:
        return (
            f"The machine paused during {self.num_paused} of {self.num_requests} requests, which "
            "are left out for all methods. Keep the machine from sleeping, and stop other programs."
        )


def find_warnings(
    table: RecordTable,
    cells: Mapping[CellKey, CellMetrics],
    rankings: Mapping[float, Ranking],
    survivors: Survivors,
    *,
    has_clocks: bool = False,
) -> tuple[RunWarning, ...]:
    """All warnings about a run. The records of `table` stand in the order in which they ran.

    With `has_clocks`, the GPU's driver told if it lowered them, and the run has that warning.
    """
    steps = _step_times(table.frame)
    return (
        *_pauses(survivors),
        *(() if has_clocks else _throttling(steps)),
        *_outliers(table, steps),
        *find_speed_warnings(table, cells, rankings, survivors),
    )


_GROUP = ["method", "temperature", "task", "turn", "concurrency", "request_rate"]
"""Columns of completions whose steps should take equally long."""


def _step_times(frame: DataFrame) -> DataFrame:
    """Measured completions with steps: `step_s`, and how it compares to the median of its group.

    `ratio` is `step_s` / the median. `is_far` tells if it lies far above the median, in units of
    the median absolute deviation of the logarithms (Iglewicz and Hoaglin 1993), at least 5 %.
    """
    is_timed = frame["is_measured"] & (frame["num_steps"] > 0) & (frame["decode_s"] > 0)
    steps = frame.loc[is_timed, [*_GROUP, "num_steps", "decode_s", "cluster"]]
    groups = [steps[name] for name in _GROUP]
    steps["step_s"] = steps["decode_s"] / steps["num_steps"]
    logs = np.log(steps["step_s"])
    above = logs - logs.groupby(groups, observed=True).transform("median")
    spread = 1.4826 * above.abs().groupby(groups, observed=True).transform("median")
    size = logs.groupby(groups, observed=True).transform("size")
    steps["ratio"] = np.exp(above)
    steps["is_far"] = (above > _FAR * spread.clip(lower=0.05)) & (size >= _LEAST_GROUP)
    return steps


def _pauses(survivors: Survivors) -> Iterable[Pauses]:
    if survivors.num_paused:
        yield Pauses(survivors.num_paused, survivors.num_shared)


def _throttling(steps: DataFrame) -> Iterable[Throttling]:
    """Vanilla slower in the last third of its completions of each task and turn than in the first.

    Other methods share its machine, not its steps. Times are relative to the median of their group.
    """
    baseline = steps[steps["method"] == BASELINE]
    groups = baseline.groupby(_GROUP, observed=True, sort=False)["ratio"]
    place = groups.cumcount() / groups.transform("size")
    thirds = {"first": baseline[place < 1 / 3], "last": baseline[place >= 2 / 3]}
    speeds = {
        name: Draws(Bootstrap(), name).estimates({"": _relative_speed(rows)})[""]
        for name, rows in thirds.items()
        if len(rows)
    }
    if len(speeds) == 2:
        p_value = slower(speeds["last"], speeds["first"], LEAST_SLOWER, EXACT)
        if p_value is not None and p_value <= ALPHA:
            yield Throttling(speeds["first"].value / speeds["last"].value - 1)


def _relative_speed(rows: DataFrame) -> Ratio:
    """Completions / their times a step relative to the usual, over clusters."""
    times = rows["ratio"].to_numpy()
    sums = cluster_sums(rows["cluster"].to_numpy(), [np.ones(len(rows)), times])
    return Ratio(sums[:, :1], sums[:, 1:])


def _outliers(table: RecordTable, steps: DataFrame) -> Iterable[Outliers]:
    ratios = steps.loc[steps["is_far"] & (steps["ratio"] > SLOW), "ratio"]
    if len(ratios) and (len(ratios) >= _MANY * len(steps) or ratios.max() >= _VERY_SLOW):
        worst = table.records[ratios.idxmax()].key
        yield Outliers(len(ratios), len(steps), worst=worst, worst_ratio=float(ratios.max()))
