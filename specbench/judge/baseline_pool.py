"""Check speed against several baselines, whose spread shows how far equal runs differ.

The change of a method between two runs is the median of log(time ratio) over its completions, since
bursts of a busy machine hit only some of them. A change of all methods together comes from the
machine or the engine. It is checked separately, and the changes of single methods are relative to
the median of all methods, or of two methods to the other one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.records import REQUEST_KEY
from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.confidence import quantile
from specbench.analysis.stats.estimates import Estimate, Interval, without_spread
from specbench.analysis.stats.significance import GATE_ALPHA, slower
from specbench.analysis.stats.variance import Variance
from specbench.analysis.tables import TabledRun
from specbench.errors.kinds import UserError
from specbench.judge.checks import Check, Status
from specbench.judge.comparison import MEAN
from specbench.judge.pairs import joinable
from specbench.judge.performance import MOST_UNSEEN
from specbench.log.run import Load

if TYPE_CHECKING:
    from pandas import DataFrame, Series

LEAST_BASELINES = 3
"""Fewest baselines that show a spread. The spread of two runs has one degree of freedom, which is
too few to predict the next run.
"""
CANNOT_TELL = "cannot tell"
"""The first words of a check that was skipped because equal runs differ too much."""
_SUBJECT = ["method", "temperature"]


class _SpeedRule(NamedTuple):
    """The rule by which a change of speed is judged."""

    max_slowdown: float
    """The share by which a time may rise."""
    level: float
    """The p-value up to which a check fails, corrected for the number of checks."""


def check_speeds(
    run: TabledRun,
    baselines: Sequence[TabledRun],
    max_slowdown: float,
    load: Load,
    num_loads: int,
) -> Iterator[Check]:
    """Check the speed of each cell, and of all methods together.

    A cell is a method, which may be vanilla, at a temperature, over all tasks. Cells of
    the first baseline that another run lacks are skipped. If only one cell is left, it is checked
    instead of all methods together. If none is left, there are no further checks.

    Args:
        run: the checked run at one load, with its table of records.
        baselines: runs at the same load, whose spread shows how far equal runs differ.
        max_slowdown: the share by which a time per token may rise.
        load: the load in the keys of the checked cells; NO_LOAD if only one load is checked.
        num_loads: the number of loads that are checked, each in a call of this function.

    Raises:
        UserError: there are too few baselines to know their spread.
    """
    num_baselines = len(baselines)
    if num_baselines < LEAST_BASELINES:
        at_load = f" at {load.text}" if load.text else ""
        raise UserError(
            f"{num_baselines} baselines{at_load} do not show how much equal runs differ.",
            f"Give one, or at least {LEAST_BASELINES}; five are better.",
        )
    # log seconds per token of each run
    log_times = [_log_times(tabled_run) for tabled_run in (run, *baselines)]
    # Median over completions of (log time in the first run of a pair - log time in the second):
    # [cells, pairs of runs], indexed by method and temperature. This run's pairs come first.
    change_table = _changes(log_times)
    cells = [
        CellKey(name, float(temperature), MEAN, load) for name, temperature in change_table.index
    ]
    for key in _cells_of(log_times[1], load):  # [0] is the checked run, [1] the first baseline
        if key not in cells:
            yield Check("speed", "skipped", "not completed in this run or not in a baseline", key)
    if not cells:
        return
    num_cells = len(cells)
    num_checks = num_cells + 1 if num_cells > 1 else 1  # + 1: all methods together
    rule = _SpeedRule(max_slowdown, GATE_ALPHA / (num_checks * num_loads))  # Bonferroni
    changes = change_table.to_numpy()  # [cells, pairs of runs]
    # of all methods together; the smaller of two, since one may have changed alone: [pairs of runs]
    common_changes = changes.min(axis=0) if num_cells == 2 else np.median(changes, axis=0)
    checked_key, ending = cells[0], "than in the baselines"  # of the last check
    if num_cells > 1:
        # The check of all methods together is listed under vanilla.
        checked_key, ending = replace(cells[0], method=BASELINE), "in all methods together"
        mean_changes, variance = _relative_changes(changes, num_baselines)
        for key, change in zip(cells, mean_changes, strict=True):
            yield _check(key, change, variance, rule, ending="than the run's other methods")
    variance = _machine_variance(common_changes, num_baselines, num_baselines - 1)
    yield _check(checked_key, float(common_changes[:num_baselines].mean()), variance, rule, ending)


def _log_times(tabled_run: TabledRun) -> Series:
    """Log seconds per token of a run's measured completions, indexed by method and request."""
    frame = tabled_run.table.frame  # a row per record
    # rows with tokens and a time
    rows = joinable(frame[frame["is_measured"]]).set_index(["method", *REQUEST_KEY])
    log_times: Series = np.log(rows["wall_s"] / rows["num_tokens"])
    return log_times


def _changes(log_times: Sequence[Series]) -> DataFrame:
    """Log of (time per token in a run / in a later run): [method and temperature, pairs of runs].

    A change is the median over the completions that all runs have. Pairs with the first run come
    first. `log_times` has the log seconds per token of each run's completions.
    """
    import pandas as pd

    shared = pd.concat(log_times, axis=1, join="inner")  # a row per completion that all runs have
    pairs = {
        (i, j): shared[i] - shared[j]  # a column for each run
        for i, j in combinations(range(len(log_times)), 2)
    }
    changes = pd.DataFrame(pairs, index=shared.index)
    return changes.groupby(level=_SUBJECT, sort=False).median()


def _cells_of(log_times: Series, load: Load) -> list[CellKey]:
    """The cells of a run at a load in sorted order: its methods and temperatures, over all tasks.

    `log_times` is indexed by method and request.
    """
    pairs = sorted({*log_times.index.droplevel(REQUEST_KEY[1:])})  # method and temperature
    return [CellKey(method, float(temperature), MEAN, load) for method, temperature in pairs]


def _relative_changes(changes: FloatArray, num_baselines: int) -> tuple[list[float], Variance]:
    """The mean change of each cell relative to the others [cells], and the variance of such means.

    The first `num_baselines` columns of `changes` [cells, pairs of runs] compare this run with a
    baseline. A change is relative to the median of all cells. Of two cells, it is relative to the
    other one, which may have become faster. So it is at most the rise of the cell's own time.
    """
    num_cells = len(changes)
    relative = changes - (changes[::-1] if num_cells == 2 else np.median(changes, axis=0))
    mean_changes = relative[:, :num_baselines].mean(axis=1)  # [cells]
    if num_cells == 2:
        mean_changes = np.minimum(mean_changes, changes[:, :num_baselines].mean(axis=1))
    # degrees of freedom between baselines * between cells
    degrees = (num_baselines - 1) * (num_cells - 1)
    # The variance of a cell's mean change between equal runs is the same for all cells. The rows of
    # two cells differ only in their signs, so one of them gives the variance.
    independent = relative[:1] if num_cells == 2 else relative
    return mean_changes.tolist(), _machine_variance(independent, num_baselines, degrees)


def _machine_variance(changes: FloatArray, num_baselines: int, degrees: int) -> Variance:
    """The variance of the next run's difference from the mean of the baselines.

    With n baselines, and changes d between two of them:

        variance of one run = sum(d**2) / n / degrees
        variance of (next run - mean of n baselines) = variance of one run * (1 + 1 / n)

    For one method, sum(d**2) over the n (n - 1) / 2 pairs is n times the sum of squares around
    the mean, which has n - 1 degrees of freedom. On the last axis of `changes`, the first n entries
    compare the run with a baseline, and the others compare two baselines.
    """
    between_baselines = changes[..., num_baselines:]
    squares = float((between_baselines**2).sum()) / num_baselines
    return Variance(squares / degrees * (1 + 1 / num_baselines), degrees)


def _check(key: CellKey, change: float, variance: Variance, rule: _SpeedRule, ending: str) -> Check:
    """Check the speed of one cell, or of all methods together.

    The check fails if the time rose significantly by more than is allowed. It is skipped if equal
    runs differ too much to tell, and passes otherwise.

    Args:
        key: the cell: method, temperature and load. For all methods together, it names vanilla.
        change: the mean change of log seconds per token, this run's minus the baselines'.
        variance: the variance of this change between equal runs, with its degrees of freedom.
        rule: the rule by which the change is judged.
        ending: the words after "slower by 3 %", such as "in all methods together".
    """
    allowed_log = math.log1p(rule.max_slowdown)  # the largest allowed change of log time
    slowdown_to_find = max(
        MOST_UNSEEN, 2 * rule.max_slowdown
    )  # the test has to find any larger one
    # Log times of equal runs seldom differ by more than this: the standard deviation times the
    # quantile of Student's t for the rule's level.
    half_width = quantile(variance.degrees, 1 - rule.level) * math.sqrt(variance.value)
    # this run's speed / the baselines'; all of its variance is in `variance`
    speed_ratio = without_spread(math.exp(-change))
    # p-value of "the time rose by no more than `max_slowdown`"; None if it cannot be tested
    p_value = slower(speed_ratio, without_spread(1.0), rule.max_slowdown, variance)
    word = "slower" if change > 0 else "faster"
    phrase = f"{word} by {abs(math.expm1(change)) * 100:.1f} % {ending}"
    phrase += f"; equal runs differ by up to {math.expm1(half_width) * 100:.1f} %"
    status: Status = "passed"
    smallest_failing = math.expm1(allowed_log + half_width)  # the smallest slowdown that would fail
    if p_value is not None and p_value <= rule.level:
        status = "failed"
        phrase += f"; {rule.max_slowdown * 100:g} % is allowed"
    elif change > allowed_log or smallest_failing > slowdown_to_find:
        # The time rose by more than is allowed, but not significantly. Or the check would miss a
        # slowdown that it has to find.
        status = "skipped"
        phrase = f"{CANNOT_TELL}: {phrase}"
    # The interval is at the test's level, and so wider than a 95 % interval.
    interval = Interval(math.expm1(change - half_width), math.expm1(change + half_width))
    return Check(
        "speed",
        status,
        phrase,
        key,
        value=Estimate(math.expm1(change), interval),  # the share by which the time rose
        allowed=rule.max_slowdown,
    )
