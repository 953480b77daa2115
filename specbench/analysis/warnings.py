"""Warnings about a run's numbers, each with its size and what to do about it.

Warnings about an unsteady machine come first, then those about speedups that the numbers do
not support. A warning does not change a number: intervals and medians stay as they are.

Times are compared as seconds a step, which hardly depend on what was accepted, and only
between completions of one method on the same turn of one task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specbench.analysis.cells import CellKey, CellMetrics
from specbench.analysis.ranking import Ranking, is_claimed
from specbench.analysis.ratios import column_ratio
from specbench.analysis.records import BASELINE, CELL_KEY, RecordTable, Survivors
from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.confidence import quantile
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.stats.significance import ALPHA, slower
from specbench.analysis.stats.variance import EXACT
from specbench.log.backend import BlockHeader
from specbench.types import Record

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_SLOWER = 0.05
"""Steps have to be slower by more than this: less is usual on machines without fixed clocks."""
_LEAST_GROUP = 8
"""Completions that a median needs: among fewer, the worst one may be the median."""
LEAST_DISAGREEMENT = 0.05
"""Least log ratio between a decode speedup and its robust companion that is reported."""
LEAST_ACCEPTING, LEAST_DRAFTS = 0.01, 200
"""Share of drafting steps that accept anything, and number of drafts, to call drafts idle."""


class RunWarning(NamedTuple):
    """A reason to distrust numbers of a run; the report's table of texts makes its sentence."""

    key: str
    numbers: Mapping[str, Any]


def find_warnings(
    table: RecordTable,
    cells: Mapping[CellKey, CellMetrics],
    rankings: Mapping[float, Ranking],
    survivors: Survivors,
    *,
    has_clocks: bool = False,
) -> tuple[RunWarning, ...]:
    """All warnings about a run. The records of `table` stand in the order in which they ran.

    With `has_clocks`, the GPU's driver reports lowered clocks, and the run has that warning.
    """
    paused, shared, requests = survivors.num_paused, survivors.num_shared, survivors.num_requests
    # Both kinds of requests are left out for all methods: those during which the machine paused,
    # and those that not every ranked method finished.
    pauses = RunWarning("pauses", {"paused": paused, "requests": shared})
    survived = RunWarning("survived", {"shared": shared, "requests": requests})
    return (
        *([pauses] if paused else ()),
        *(() if has_clocks else _throttling(table.frame)),
        *_few_samples(cells),
        *_not_significant(rankings),
        *([survived] if shared < requests else ()),
        *_disagreements(table.frame, survivors, cells),
    )


_GROUP = ["method", "temperature", "task", "turn", "concurrency", "request_rate"]
_GROUP += ["origin", "worker"]
"""Columns of completions whose steps should take equally long."""


def _throttling(frame: DataFrame) -> Iterable[RunWarning]:
    """Vanilla slower in the last third of its completions of each task and turn than in the first.

    Only vanilla's steps cost the same each time. Times are relative to their group's
    median.
    """
    is_timed = frame["is_measured"] & (frame["num_steps"] > 0) & (frame["decode_s"] > 0)
    baseline = frame[is_timed & (frame["method"] == BASELINE)]
    logs = np.log(baseline["decode_s"] / baseline["num_steps"])
    usual = logs.groupby([baseline[name] for name in _GROUP], observed=True).transform("median")
    baseline = baseline.assign(one=1.0, ratio=np.exp(logs - usual))
    groups = baseline.groupby(_GROUP, observed=True, sort=False)["ratio"]
    place = groups.cumcount() / groups.transform("size")
    thirds = {"first": baseline[place < 1 / 3], "last": baseline[place >= 2 / 3]}
    speeds = {
        name: Draws(Bootstrap(), name).estimate(column_ratio(rows, ["one"], ["ratio"]))
        for name, rows in thirds.items()
        if len(rows)
    }
    if len(speeds) == 2:
        p_value = slower(speeds["last"], speeds["first"], LEAST_SLOWER, EXACT)
        if p_value is not None and p_value <= ALPHA:
            change = speeds["first"].value / speeds["last"].value - 1
            yield RunWarning("throttling", {"change": change})


def _few_samples(cells: Mapping[CellKey, CellMetrics]) -> Iterable[RunWarning]:
    """Tasks with too few samples for an interval."""
    few: dict[str, int] = {}
    for key, cell in cells.items():
        numbers = [v for v in (cell.speedup, cell.mat) if isinstance(v, Estimate)]
        has_none = bool(numbers) and numbers[0].interval is None
        if key.task and key.method != BASELINE and has_none:
            few[key.task] = min(cell.num_samples, few.get(key.task, cell.num_samples))
    if few:
        tasks = [{"task": task, "samples": number} for task, number in few.items()]
        yield RunWarning("few_samples", {"tasks": tasks})


def _not_significant(rankings: Mapping[float, Ranking]) -> Iterable[RunWarning]:
    """Methods whose mean speedup does not differ significantly from 1, with about how many
    times the prompts would show the difference. Their variance shrinks with their number, the
    machine's does not: where passes or runs differ by more, no number would do.
    """
    for temperature, ranking in rankings.items():
        weak = {
            method: _factor(value)
            for method, value in ranking.speedups.items()
            if value.interval is not None
            and value.machine is not None
            and not is_claimed(ranking.against_baseline[method])
        }
        if weak:
            yield not_significant(temperature, weak)


def not_significant(temperature: float, factors: Mapping[str, float]) -> RunWarning:
    """The warning on these methods; a factor is infinite if no number of prompts would do."""
    possible = {method: factor for method, factor in factors.items() if factor < math.inf}
    numbers = {
        "temperature": temperature,
        "methods": [*factors],
        "possible": [{"method": method, "factor": factor} for method, factor in possible.items()],
        "hopeless": [{"method": method} for method in factors if method not in possible],
    }
    return RunWarning("not_significant", numbers)


def _factor(value: Estimate) -> float:
    """About how many times the prompts put 1 outside the value's interval."""
    prompts, machine, variance = value.prompts, value.machine, value.variance
    assert prompts is not None and machine is not None and variance is not None
    gap = abs(math.log(value.value)) / quantile(variance.degrees)
    room = gap**2 - machine.value
    return prompts.value / room if room > 0 else math.inf


def _disagreements(
    frame: DataFrame, survivors: Survivors, cells: Mapping[CellKey, CellMetrics]
) -> Iterable[RunWarning]:
    """Decode speedups that a few completions decide: they lie far from MAT / the median of the
    paired times a step.
    """
    is_used = survivors.is_shared & (frame["method"] != BASELINE)
    is_used &= (frame["num_steps"] > 0) & (frame["baseline_num_steps"] > 0)
    used = frame[is_used & (frame["decode_s"] > 0) & (frame["baseline_decode_s"] > 0)]
    cost = (used["decode_s"] / used["num_steps"]) / (
        used["baseline_decode_s"] / used["baseline_num_steps"]
    )
    found: dict[float, list[dict[str, Any]]] = defaultdict(list)
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
            numbers = {"method": method, "task": task, "speedup": value.value, "median": median}
            found[temperature].append(numbers)
    for temperature, named in found.items():
        yield RunWarning("disagreement", {"temperature": temperature, "cells": named})


def find_idle_drafts(
    records: Iterable[Record], blocks: Iterable[BlockHeader]
) -> Iterable[RunWarning]:
    """Methods whose drafting steps accept next to nothing.

    For a server its counters show it, from the first draft on if it accepts none at all.
    """
    counts: dict[tuple[str, float], FloatArray] = defaultdict(lambda: np.zeros(2))
    for record in records:
        steps = zip(record.accept_lengths, record.num_nodes, strict=False)
        accepting = [length > 1 for length, nodes in steps if nodes > 1]
        counts[record.key.method, record.key.temperature] += sum(accepting), len(accepting)
    served: dict[tuple[str, float], FloatArray] = defaultdict(lambda: np.zeros(2))
    for block in blocks:
        accepted = block.counters.get("accepted_at_1", block.counters.get("num_accepted", 0.0))
        served[block.method, block.temperature] += accepted, block.counters.get("num_drafts", 0.0)
    for subject, (accepting, drafts) in (*counts.items(), *served.items()):
        least = 1 if subject in served and not accepting else LEAST_DRAFTS
        if drafts >= least and accepting < LEAST_ACCEPTING * drafts:
            where = {"method": subject[0], "temperature": subject[1]}
            yield RunWarning(
                "idle_drafts", {**where, "accepting": int(accepting), "drafts": int(drafts)}
            )
