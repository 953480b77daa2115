"""Warnings about what speedups can and cannot tell: samples, tests, failures, and outliers.

Knows the measured cells of a run and the tests of its ranking. A warning changes no number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from specbench.analysis.cells import CellKey, CellMetrics
from specbench.analysis.columns import BASELINE, CELL_KEY
from specbench.analysis.ranking import Ranking, is_claimed
from specbench.analysis.records import RecordTable
from specbench.analysis.stats.bootstrap import Estimate, quantile
from specbench.analysis.survivors import Survivors
from specbench.log.header import RunHeader

LEAST_DISAGREEMENT = 0.05
"""Least log ratio between a decode speedup and its robust companion that is reported."""
_LEAST_PAIRS = 8


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
        if len(rows) < _LEAST_PAIRS or not isinstance(value, Estimate) or value.interval is None:
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
