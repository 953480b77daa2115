"""Warn about numbers of a run that a reader should distrust.

Warnings about an unsteady machine come first, then those about speedups that the numbers do
not support. A warning does not change a number: intervals and medians stay as they are.

Times are compared as seconds per step, which hardly depend on how many draft tokens were accepted,
and only between completions of one method for the same turn and task.
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
"""A warning needs steps that are slower by more than this share: less is usual on machines without
fixed clocks.
"""
_LEAST_GROUP = 8
"""The fewest completions for a median. With fewer, one bad completion may decide it."""
LEAST_DISAGREEMENT = 0.05
"""The smallest |log(robust speedup / decode speedup)| that is reported (see `_disagreements`)."""


class RunWarning(NamedTuple):
    """A reason to distrust numbers of a run. The report has a text for each key."""

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
    """Collect the warnings that follow from a run's table of records and its cells.

    The records of `table` are in the order in which they ran. `rankings` are by temperature.
    `survivors` has the requests that every ranked method finished. `has_clocks` is True if the
    GPU's driver reported its clock rates. Then the run itself warns about lowered rates, so times
    are not checked for throttling.
    """
    warnings: list[RunWarning] = []
    # Numbers of requests: those that every ranked method finished, those among them with a pause of
    # the machine, and those that any method finished.
    num_shared = survivors.num_shared
    num_paused = survivors.num_paused
    num_requests = survivors.num_requests
    if num_paused:
        warnings.append(RunWarning("pauses", {"paused": num_paused, "requests": num_shared}))
    # sentences about equal tokens with different texts, or too many equal times
    warnings += (RunWarning("unusual", {"text": text}) for text in find_unusual(table.records))
    # in a burst, an answer's tokens reached the client too close together
    if bursts := count_bursts(table.frame):  # the warning's numbers; empty without a burst
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
"""The columns that identify completions whose steps should take equally long."""


def _throttling(frame: DataFrame) -> Iterable[RunWarning]:
    """Yield a warning if vanilla's steps became slower during the run by more than LEAST_SLOWER.

    Only vanilla's steps should always take equally long. In each group, the last third of the
    completions is compared with the first third; a group (`_GROUP`) has completions whose steps
    should take equally long. Times are relative to the median of the group. `frame` has one row per
    record, in the order in which they ran. The warning's `change` is the share by which steps
    became slower.
    """
    # `is_measured`: the answer has tokens and did not fail
    is_timed = frame["is_measured"] & (frame["num_steps"] > 0) & (frame["decode_s"] > 0)
    vanilla_rows = frame[is_timed & (frame["method"] == BASELINE)]
    # logarithm of the seconds of a step, and its median over the row's group [vanilla_rows]
    log_step_s = np.log(vanilla_rows["decode_s"] / vanilla_rows["num_steps"])
    group_columns = [vanilla_rows[name] for name in _GROUP]
    log_median_s = log_step_s.groupby(group_columns, observed=True).transform("median")
    # A row is a single completion.
    rows = vanilla_rows.assign(completions=1.0, relative_time=np.exp(log_step_s - log_median_s))
    group_times = rows.groupby(_GROUP, observed=True, sort=False)["relative_time"]
    # for each completion, the share of its group that ran before it, from 0 to 1
    share_earlier = group_times.cumcount() / group_times.transform("size")
    first_third = rows[share_earlier < 1 / 3]
    last_third = rows[share_earlier >= 2 / 3]
    if not len(first_third) or not len(last_third):
        return
    # Random streams with different names are independent.
    first_speed = _speed(first_third, "first")
    last_speed = _speed(last_third, "last")
    # p-value of "slower by at most LEAST_SLOWER"; EXACT: the machine adds no variance
    p_value = slower(last_speed, first_speed, LEAST_SLOWER, EXACT)
    if p_value is not None and p_value <= ALPHA:  # None if too few samples
        yield RunWarning("throttling", {"change": first_speed.value / last_speed.value - 1})


def _speed(rows: DataFrame, stream: str) -> Estimate:
    """Divide completions by the sum of their relative times. `stream` names the random stream."""
    return Draws(Bootstrap(), stream).estimate(
        column_ratio(rows, ["completions"], ["relative_time"])
    )


def _few_samples(
    cells: Mapping[CellKey, CellMetrics], rankings: Mapping[float, Ranking]
) -> Iterable[RunWarning]:
    """Yield a warning if tasks have too few samples for a claim.

    If a number is None or empty, its part of the text is left out. `bare` is the smallest
    number of samples of a task if no cell has an interval to show. If cells have intervals to show,
    `few` is the number of samples if all tasks have too few and the same number; if not, `tasks`
    has the number of samples of each task with too few. `methods` lists methods whose mean speedup
    has no interval, since one task decides it. `needed` samples per task would be enough.
    """
    fewest_samples: dict[str, int] = {}  # task with too few samples -> the fewest of any method
    # Samples of equal length need MIN_DEGREES + 1. Lengths differ, so one more is needed.
    num_needed = MIN_DEGREES + 2
    has_interval = False  # True if any cell has an interval to show
    for key, cell in cells.items():
        estimates = [number for number in (cell.speedup, cell.mat) if isinstance(number, Estimate)]
        # An empty task means all tasks together.
        if not key.task or key.method == BASELINE or not estimates:
            continue
        estimate, *_ = estimates  # the speedup, or else MAT
        # An interval is shown with fewer samples than a claim needs; `interval` is None then.
        has_interval |= any(number.shown_interval is not None for number in estimates)
        if estimate.interval is None:  # too few samples for a claim
            fewest_samples[key.task] = min(
                cell.num_samples, fewest_samples.get(key.task, cell.num_samples)
            )
            # The effective number of samples is degrees + 1. It grows with the number of samples.
            # The degrees of freedom are NaN if a sum is 0; this counts as 0, as for one sample.
            degrees = estimate.degrees if estimate.degrees > 0 else 0.0
            factor = (MIN_DEGREES + 1) / (degrees + 1)
            num_needed = max(num_needed, math.ceil(factor * cell.num_samples))
    if not fewest_samples:
        return
    # pairs of a method and its mean speedup over tasks, from all temperatures
    means = [pair for ranking in rankings.values() for pair in ranking.speedups.items()]
    tasks = {key.task for key in cells if key.task}
    # methods whose mean speedup has no interval to show
    undecided = [method for method, mean in means if len(tasks) > 1 and not mean.shown_interval]
    task_samples = [
        {"task": task, "samples": num_samples} for task, num_samples in fewest_samples.items()
    ]
    fewest_of_all = min(fewest_samples.values())
    # All tasks have too few samples, and the same number.
    are_alike = {fewest_of_all} == {*fewest_samples.values()} and tasks == {*fewest_samples}
    numbers = {
        "tasks": task_samples if has_interval and not are_alike else [],
        "few": fewest_of_all if has_interval and are_alike else None,
        "bare": None if has_interval else fewest_of_all,
        "methods": [*dict.fromkeys(undecided)],  # each method once
        "needed": num_needed,
    }
    yield RunWarning("few_samples", numbers)


def _not_significant(rankings: Mapping[float, Ranking]) -> Iterable[RunWarning]:
    """Yield warnings about methods whose mean speedup does not differ significantly from 1.

    For each method, a warning has the factor by which the number of prompts must grow to show the
    difference. More prompts reduce the variance from prompts, but not the machine's: if passes or
    runs differ too much, no number of prompts is enough.
    """
    for temperature, ranking in rankings.items():
        factors = {
            method: _factor(speedup)
            for method, speedup in ranking.speedups.items()
            if speedup.interval is not None
            and speedup.machine is not None  # the machine's variance is known
            and not is_claimed(ranking.against_baseline[method])  # p-value of "as fast as vanilla"
        }
        if factors:
            yield not_significant(temperature, factors)


def not_significant(temperature: float, factors: Mapping[str, float]) -> RunWarning:
    """Make the warning about methods whose speedup does not differ significantly from 1.

    `factors` has the factor by which the number of prompts must grow for each method, infinite if
    no number is enough. With a factor of 1 or less, the difference is significant before Holm's
    correction, and no factor is shown.
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
    """Estimate the factor by which the number of prompts must grow to put 1 outside the interval.

    It is infinite if the machine's variance alone keeps 1 inside the interval.
    """
    # variances of log(speedup): from prompts, from the machine, and from both
    prompts = speedup.prompts
    machine = speedup.machine
    variance = speedup.variance
    assert prompts is not None and machine is not None and variance is not None
    # The interval of log(speedup) ends at 0 if t * its standard deviation is |log(speedup)|. Hence
    # log(speedup)^2 / t^2 = prompts / factor + machine.
    standard_deviation = abs(math.log(speedup.value)) / quantile(variance.degrees)
    left_for_prompts = standard_deviation**2 - machine.value
    return prompts.value / left_for_prompts if left_for_prompts > 0 else math.inf


def _disagreements(
    frame: DataFrame, survivors: Survivors, cells: Mapping[CellKey, CellMetrics]
) -> Iterable[RunWarning]:
    """Yield a warning per temperature about decode speedups that a few completions decide.

    The robust speedup of a cell is MAT / the median cost of a step. A warning names the cells whose
    robust speedup is outside the interval of the decode speedup, and far from the decode speedup.
    The cost of a step is its seconds / the seconds of vanilla's step in the same request. `frame`
    has one row per record, with vanilla's numbers of the request as `baseline_...`;
    `survivors.is_shared` [records] is True for the rows on which methods are compared.
    """
    has_steps = (frame["num_steps"] > 0) & (frame["baseline_num_steps"] > 0)
    has_times = (frame["decode_s"] > 0) & (frame["baseline_decode_s"] > 0)
    is_counted = survivors.is_shared & (frame["method"] != BASELINE) & has_steps & has_times
    counted_rows = frame[is_counted]
    step_s = counted_rows["decode_s"] / counted_rows["num_steps"]
    base_step_s = counted_rows["baseline_decode_s"] / counted_rows["baseline_num_steps"]
    step_costs = step_s / base_step_s
    # temperature -> the warning's numbers for each cell whose two speedups disagree
    disagreements: dict[float, list[dict[str, Any]]] = defaultdict(list)
    rows_by_cell = counted_rows.groupby(CELL_KEY, observed=True, sort=False)
    for (method, temperature, task), cell_rows in rows_by_cell:
        cell = cells.get(CellKey(method, temperature, task))
        speedup = cell.decode_speedup if cell else None
        # too few completions for a median, or no interval with which to compare it
        if len(cell_rows) < _LEAST_GROUP or not isinstance(speedup, Estimate):
            continue
        if speedup.interval is None:
            continue
        mat = cell_rows["num_emitted"].sum() / cell_rows["num_steps"].sum()
        # tokens without the first of each answer, which the prefill emits
        base_num_emitted = (cell_rows["baseline_num_tokens"] - 1).sum()
        base_mat = base_num_emitted / cell_rows["baseline_num_steps"].sum()  # about 1
        robust_speedup = float(mat / base_mat / step_costs[cell_rows.index].median())
        is_far = abs(math.log(robust_speedup / speedup.value)) > LEAST_DISAGREEMENT
        if is_far and robust_speedup not in speedup.interval:
            disagreements[temperature].append(
                {"method": method, "task": task, "speedup": speedup.value, "median": robust_speedup}
            )
    for temperature, cell_numbers in disagreements.items():
        yield RunWarning("disagreement", {"temperature": temperature, "cells": cell_numbers})
