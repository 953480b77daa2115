"""Warnings about a run's numbers, each with its size and what to do about it.

Warnings about an unsteady machine come first, then those about speedups that the numbers do
not support. A warning does not change a number: intervals and medians stay as they are.

Times are compared as seconds per step, which hardly depend on what was accepted, and only
between completions of one method on the same turn of one task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specbench.analysis.cells import CellKey, CellMetrics
from specbench.analysis.decode_times import count_bursts
from specbench.analysis.ranking import Ranking, is_claimed
from specbench.analysis.ratios import column_ratio
from specbench.analysis.records import BASELINE, CELL_KEY, RecordTable
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.confidence import MIN_DEGREES, quantile
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.stats.significance import ALPHA, slower
from specbench.analysis.stats.variance import EXACT
from specbench.analysis.survivors import Survivors
from specbench.analysis.unusual import find_unusual

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_SLOWER = 0.05
"""A warning needs steps slower by more than this: less is usual on machines without fixed
clocks.
"""
_LEAST_GROUP = 8
"""Completions that a median needs: with fewer, the worst one may be the median."""
LEAST_DISAGREEMENT = 0.05
"""Smallest log ratio of a decode speedup to its robust companion that is reported."""


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

    With `has_clocks`, the GPU's driver reports lowered clocks, and the run itself warns of them.
    `cells` are by method, temperature and task, `rankings` by temperature. `survivors` are the
    requests that every ranked method finished. A warning has its key and the numbers of its text.
    """
    warnings: list[RunWarning] = []
    # Both kinds of requests are left out for all methods: those during which the machine paused,
    # and those that not every ranked method finished.
    num_paused = survivors.num_paused
    num_shared = survivors.num_shared
    num_requests = survivors.num_requests
    if num_paused:
        warnings.append(RunWarning("pauses", {"paused": num_paused, "requests": num_shared}))
    warnings += (RunWarning("unusual", {"text": text}) for text in find_unusual(table.records))
    bursts = count_bursts(table.frame)
    if bursts:
        warnings.append(RunWarning("bursts", bursts))
    if not has_clocks:
        warnings += _throttling(table.frame)
    warnings += _few_samples(cells, rankings)
    warnings += _not_significant(rankings)
    if num_shared < num_requests:
        warnings.append(RunWarning("survived", {"shared": num_shared, "requests": num_requests}))
    warnings += _disagreements(table.frame, survivors, cells)
    return tuple(warnings)


_GROUP = [
    "method",
    "temperature",
    "task",
    "turn",
    "concurrency",
    "request_rate",
    "origin",
    "worker",
]
"""Columns of completions whose steps should take equally long."""


def _throttling(frame: DataFrame) -> Iterable[RunWarning]:
    """Vanilla slower in the last third of its completions of each task and turn than in the first.

    Only vanilla's steps cost the same each time. Times are relative to the median of their group,
    whose steps should take equally long. `frame` has one row per record, in the order in which they
    ran. The `change` of a warning is the share by which steps became slower.
    """
    is_timed = frame["is_measured"] & (frame["num_steps"] > 0) & (frame["decode_s"] > 0)
    vanilla_rows = frame[is_timed & (frame["method"] == BASELINE)]
    log_step_s = np.log(vanilla_rows["decode_s"] / vanilla_rows["num_steps"])
    group_columns = [vanilla_rows[name] for name in _GROUP]
    log_median_s = log_step_s.groupby(group_columns, observed=True).transform("median")
    vanilla_rows = vanilla_rows.assign(
        completions=1.0, relative_time=np.exp(log_step_s - log_median_s)
    )
    group_times = vanilla_rows.groupby(_GROUP, observed=True, sort=False)["relative_time"]
    # Of each completion: the share of its group that ran before it, from 0 to 1.
    share_earlier = group_times.cumcount() / group_times.transform("size")
    first_third = vanilla_rows[share_earlier < 1 / 3]
    last_third = vanilla_rows[share_earlier >= 2 / 3]
    if not len(first_third) or not len(last_third):
        return
    # completions / relative times, with "first" and "last" as names of random streams
    first_speed = _speed(first_third, "first")
    last_speed = _speed(last_third, "last")
    # p-value of "slower by LEAST_SLOWER at most"; EXACT: the machine adds no variance
    p_value = slower(last_speed, first_speed, LEAST_SLOWER, EXACT)
    if p_value is not None and p_value <= ALPHA:  # None: too few samples
        yield RunWarning("throttling", {"change": first_speed.value / last_speed.value - 1})


def _speed(rows: DataFrame, stream: str) -> Estimate:
    """Completions / the sum of their relative times."""
    return Draws(Bootstrap(), stream).estimate(
        column_ratio(rows, ["completions"], ["relative_time"])
    )


def _few_samples(
    cells: Mapping[CellKey, CellMetrics], rankings: Mapping[float, Ranking]
) -> Iterable[RunWarning]:
    """A warning on tasks with too few samples for a claim, and on means that one task decides.

    A cell is a method at one temperature on one task (an empty name: all tasks together). Its
    speedup and MAT are each an `Estimate` or `Missing`. The warning has `bare`, the number of
    samples, if no cell has an interval to show; `few`, if all tasks have the same number; otherwise
    `tasks`, with the number of each. `needed` samples per task would be enough.
    """
    fewest_samples: dict[str, int] = {}
    num_needed = MIN_DEGREES + 2
    has_interval = False  # some cell has one to show
    for key, cell in cells.items():
        estimates = [number for number in (cell.speedup, cell.mat) if isinstance(number, Estimate)]
        if not key.task or key.method == BASELINE or not estimates:
            continue
        has_interval |= estimates[0].shown_interval is not None
        if estimates[0].interval is None:
            # Of the methods on this task, the fewest samples.
            fewest_samples[key.task] = min(
                cell.num_samples, fewest_samples.get(key.task, cell.num_samples)
            )
            # degrees + 1, the effective number of samples, grows with their number
            degrees = estimates[0].degrees if estimates[0].degrees > 0 else 0.0
            factor = (MIN_DEGREES + 1) / (degrees + 1)
            num_needed = max(num_needed, math.ceil(factor * cell.num_samples))
    if not fewest_samples:
        return
    means = [speedups for ranking in rankings.values() for speedups in ranking.speedups.items()]
    tasks = {key.task for key in cells if key.task}
    undecided = [method for method, mean in means if len(tasks) > 1 and not mean.shown_interval]
    task_samples = [
        {"task": task, "samples": num_samples} for task, num_samples in fewest_samples.items()
    ]
    num_samples = min(fewest_samples.values())
    are_alike = {num_samples} == {*fewest_samples.values()} and tasks == {*fewest_samples}
    numbers = {
        "tasks": task_samples if has_interval and not are_alike else [],
        "few": num_samples if has_interval and are_alike else None,
        "bare": None if has_interval else num_samples,
        "methods": [*dict.fromkeys(undecided)],
        "needed": num_needed,
    }
    yield RunWarning("few_samples", numbers)


def _not_significant(rankings: Mapping[float, Ranking]) -> Iterable[RunWarning]:
    """Methods whose mean speedup does not differ significantly from 1, each with the factor on the
    prompts that would show the difference. More prompts reduce the variance of prompts, but not the
    machine's: if passes or runs differ too much, no number would do.
    """
    for temperature, ranking in rankings.items():
        factors = {
            method: _factor(speedup)
            for method, speedup in ranking.speedups.items()
            if speedup.interval is not None
            and speedup.machine is not None
            and not is_claimed(ranking.against_baseline[method])
        }
        if factors:
            yield not_significant(temperature, factors)


def not_significant(temperature: float, factors: Mapping[str, float]) -> RunWarning:
    """The warning on these methods; a factor is infinite if no number of prompts would do.

    With a factor of 1 or less, the difference is significant before Holm's correction, and no
    factor is shown.
    """
    numbers = {
        "temperature": temperature,
        "methods": [*factors],
        "possible": [
            {"method": method, "factor": factor}
            for method, factor in factors.items()
            if 1 < factor < math.inf
        ],
        "hopeless": [{"method": method} for method in factors if factors[method] == math.inf],
    }
    return RunWarning("not_significant", numbers)


def _factor(speedup: Estimate) -> float:
    """The approximate factor on the prompts that puts 1 outside the speedup's interval."""
    prompts = speedup.prompts
    machine = speedup.machine
    variance = speedup.variance
    assert prompts is not None and machine is not None and variance is not None
    # 1 is at the interval's end if log(speedup)^2 / t^2 = prompts / factor + machine
    standard_deviation = abs(math.log(speedup.value)) / quantile(variance.degrees)
    left_for_prompts = standard_deviation**2 - machine.value
    return prompts.value / left_for_prompts if left_for_prompts > 0 else math.inf


def _disagreements(
    frame: DataFrame, survivors: Survivors, cells: Mapping[CellKey, CellMetrics]
) -> Iterable[RunWarning]:
    """Decode speedups that a few completions decide: they lie far from MAT / the median of the
    paired step costs.

    `frame` has one row per record, with vanilla's numbers of the same request (`baseline_`). A step
    cost is the seconds of a method's step / vanilla's. `survivors.is_shared` [records] is true for
    requests that every ranked method finished. There is a warning per temperature.
    """
    has_steps = (frame["num_steps"] > 0) & (frame["baseline_num_steps"] > 0)
    has_times = (frame["decode_s"] > 0) & (frame["baseline_decode_s"] > 0)
    is_used = survivors.is_shared & (frame["method"] != BASELINE) & has_steps & has_times
    used_rows = frame[is_used]
    step_s = used_rows["decode_s"] / used_rows["num_steps"]
    base_step_s = used_rows["baseline_decode_s"] / used_rows["baseline_num_steps"]
    step_costs = step_s / base_step_s
    disagreements: dict[float, list[dict[str, Any]]] = defaultdict(list)
    rows_by_cell = used_rows.groupby(CELL_KEY, observed=True, sort=False)
    for (method, temperature, task), cell_rows in rows_by_cell:
        cell = cells.get(CellKey(method, temperature, task))
        speedup = cell.decode_speedup if cell else None
        # Too few completions for a median, or no number to compare it with.
        if len(cell_rows) < _LEAST_GROUP or not isinstance(speedup, Estimate):
            continue
        if speedup.interval is None:
            continue
        mat = cell_rows["num_emitted"].sum() / cell_rows["num_steps"].sum()
        base_num_emitted = (cell_rows["baseline_num_tokens"] - 1).sum()  # without the prefill's
        base_mat = base_num_emitted / cell_rows["baseline_num_steps"].sum()
        robust_speedup = float(mat / base_mat / step_costs[cell_rows.index].median())
        # LEAST_DISAGREEMENT is of logarithms
        is_far = abs(math.log(robust_speedup / speedup.value)) > LEAST_DISAGREEMENT
        if is_far and robust_speedup not in speedup.interval:
            disagreements[temperature].append(
                {"method": method, "task": task, "speedup": speedup.value, "median": robust_speedup}
            )
    for temperature, cell_numbers in disagreements.items():
        yield RunWarning("disagreement", {"temperature": temperature, "cells": cell_numbers})
