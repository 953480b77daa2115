"""Warnings about a run's numbers, each with its size and what to do about it.

First those of a machine that is not steady, then those of speedups that the numbers do not
support. A warning changes no number: intervals and medians stay as they are.

Times are compared as seconds a step, which hardly depend on what was accepted, and only between
completions of one method on the same turn of one task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from specbench.analysis.cells import CellKey, CellMetrics
from specbench.analysis.columns import BASELINE, CELL_KEY
from specbench.analysis.ranking import Ranking, is_claimed
from specbench.analysis.ratios import cluster_sums
from specbench.analysis.records import RecordTable
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Estimate, Ratio, quantile
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
"""Completions that a median and a spread need: fewer have their worst as a typical one."""
LEAST_DISAGREEMENT = 0.05
"""Least log ratio between a decode speedup and its robust companion that is reported."""


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


class RunWarning(Protocol):
    """A reason to distrust numbers of a run. The fields are its data."""

    def message(self, info: RunHeader) -> str:
        """The warning in words: the event, its size, and the remedy."""


@dataclass(frozen=True, slots=True)
class FewSamples:
    """Tasks (name -> samples) with too few samples for an interval."""

    tasks: Mapping[str, int]

    def message(self, info: RunHeader) -> str:
        tasks = ", ".join(f"{info.task_title(task)} ({n})" for task, n in self.tasks.items())
        return f"Too few samples for an interval: {tasks}. Raise --limit, or use --prompts paper."


@dataclass(frozen=True, slots=True)
class NotSignificant:
    """Methods at one temperature whose mean speedup does not differ significantly from 1.

    `methods` maps each to about how many times the samples would show the difference: infinity if
    no number would, since passes or runs differ by more.
    """

    temperature: float
    methods: Mapping[str, float]

    def message(self, info: RunHeader) -> str:
        labels = {info.method(method).label: factor for method, factor in self.methods.items()}
        text = (
            f"Not significantly different from vanilla at T={self.temperature:g}: "
            f"{', '.join(labels)}."
        )
        counts = [
            f"{label} with {_times(factor)} as many prompts"
            for label, factor in labels.items()
            if factor < math.inf
        ]
        if counts:
            text += f" A difference would show for {', '.join(counts)}."
        if hopeless := [label for label, factor in labels.items() if factor == math.inf]:
            text += f" No number of prompts would show one for {', '.join(hopeless)}: use more "
            text += "passes or runs."
        return f"{text} `specbench report RUN --plan` counts them."


@dataclass(frozen=True, slots=True)
class Survived:
    """Requests that not every ranked method finished: they are left out for all."""

    num_shared: int
    num_requests: int

    def message(self, info: RunHeader) -> str:
        return (
            f"Methods are compared on {self.num_shared} of {self.num_requests} requests, those "
            "that every method finished: a method must not gain by failing where it is slow."
        )


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Methods at one temperature whose decode speedup a few completions decide.

    `cells` maps method and task to the decode speedup, and to the same from the median of the
    paired times a step.
    """

    temperature: float
    cells: Mapping[tuple[str, str], tuple[float, float]]

    def message(self, info: RunHeader) -> str:
        names = ", ".join(
            f"{info.method(method).label} on {info.task_title(task)} {median:.2f}x "
            f"(not {value:.2f}x)"
            for (method, task), (value, median) in self.cells.items()
        )
        return (
            f"A few slow completions decide speedups at T={self.temperature:g}. By the median of "
            f"the paired step times, decoding alone is: {names}. Repeat the run on an idle machine."
        )


def find_speed_warnings(
    table: RecordTable,
    cells: Mapping[CellKey, CellMetrics],
    rankings: Mapping[float, Ranking],
    survivors: Survivors,
) -> Iterable[RunWarning]:
    """All of them, for the table that the cells and rankings were measured from."""
    yield from _few_samples(cells)
    yield from _not_significant(rankings)
    yield from _survived(survivors)
    yield from _disagreements(table, survivors, cells)


def _few_samples(cells: Mapping[CellKey, CellMetrics]) -> Iterable[FewSamples]:
    few: dict[str, int] = {}
    for key, cell in cells.items():
        numbers = [v for v in (cell.speedup, cell.mat) if isinstance(v, Estimate)]
        has_none = bool(numbers) and numbers[0].interval is None
        if key.task and key.method != BASELINE and has_none:
            few[key.task] = min(cell.num_samples, few.get(key.task, cell.num_samples))
    return [FewSamples(few)] if few else []


def _not_significant(rankings: Mapping[float, Ranking]) -> Iterable[NotSignificant]:
    """The variance from prompts shrinks with their number, the machine's does not."""
    for temperature, ranking in rankings.items():
        weak = {
            method: _factor(value)
            for method, value in ranking.speedups.items()
            if value.interval is not None
            and value.machine is not None
            and not is_claimed(ranking.against_baseline[method])
        }
        if weak:
            yield NotSignificant(temperature, weak)


def _factor(value: Estimate) -> float:
    """About how many times the prompts put 1 outside the value's interval."""
    prompts, machine, variance = value.prompts, value.machine, value.variance
    assert prompts is not None and machine is not None and variance is not None
    gap = abs(math.log(value.value)) / quantile(variance.degrees)
    room = gap**2 - machine.value
    return prompts.value / room if room > 0 else math.inf


def _survived(survivors: Survivors) -> Iterable[Survived]:
    if survivors.num_shared < survivors.num_requests:
        yield Survived(survivors.num_shared, survivors.num_requests)


def _disagreements(
    table: RecordTable, survivors: Survivors, cells: Mapping[CellKey, CellMetrics]
) -> Iterable[Disagreement]:
    """Decode speedups that lie far from MAT / the median of the paired times a step."""
    frame = table.frame
    is_used = survivors.is_shared & (frame["method"] != BASELINE)
    is_used &= (frame["num_steps"] > 0) & (frame["baseline_num_steps"] > 0)
    used = frame[is_used & (frame["decode_s"] > 0) & (frame["baseline_decode_s"] > 0)]
    cost = (used["decode_s"] / used["num_steps"]) / (
        used["baseline_decode_s"] / used["baseline_num_steps"]
    )
    found: dict[float, dict[tuple[str, str], tuple[float, float]]] = defaultdict(dict)
    for names, rows in used.groupby(CELL_KEY, observed=True, sort=False):
        method, temperature, task = names
        cell = cells.get(CellKey(method, temperature, task))
        value = cell.decode_speedup if cell else None
        if len(rows) < _LEAST_GROUP or not isinstance(value, Estimate) or value.interval is None:
            continue
        mats = [
            rows["num_emitted"].sum() / rows["num_steps"].sum(),
            (rows["baseline_num_tokens"] - 1).sum() / rows["baseline_num_steps"].sum(),
        ]
        median = float(mats[0] / mats[1] / cost[rows.index].median())
        is_far = abs(math.log(median / value.value)) > LEAST_DISAGREEMENT
        if is_far and median not in value.interval:
            found[temperature][method, task] = value.value, median
    return [Disagreement(temperature, named) for temperature, named in found.items()]


def _times(factor: float) -> str:
    if factor > 100:
        return "over 100x"
    return f"{factor:.1f}x" if factor < 9.5 else f"{factor:.0f}x"
