"""Checks of speed against several baselines, whose spread predicts the next run.

The change of a method between two runs is the median, over its completions, of the logarithm of
the ratio of their times: bursts of a busy machine hit some completions only. A change of all
methods alike, which is the machine's or the engine's, is a number of its own, and the methods'
are relative to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from specbench.judge.performance import MOST_UNSEEN
from specbench.log.run import Load

if TYPE_CHECKING:
    from pandas import DataFrame, Series

LEAST_BASELINES = 3
"""The spread of two runs has one degree of freedom: it predicts nothing."""
CANNOT_TELL = "cannot tell"
"""The start of the text of a speed that was skipped since equal runs differ by too much."""
_SUBJECT = ["method", "temperature"]


class _SpeedRule(NamedTuple):
    """What a change of speed is held against."""

    max_slowdown: float
    """The share by which a time may rise."""
    level: float
    """The p-value below which a check fails, corrected for the number of checks."""


def check_speeds(
    run: TabledRun,
    baselines: Sequence[TabledRun],
    max_slowdown: float,
    load: Load,
    num_loads: int,
) -> Iterator[Check]:
    """A check of speed of each method and temperature and, under vanilla, one of all methods
    together. A method of the first baseline that another run lacks is skipped.

    `load` is that of all these runs, one of `num_loads` that are checked.

    Raises:
        UserError: there are too few baselines to know their spread.
    """
    num_baselines = len(baselines)
    if num_baselines < LEAST_BASELINES:
        where = f" at {load.text}" if load.text else ""
        raise UserError(
            f"{num_baselines} baselines{where} do not show how far equal runs differ.",
            f"Give one, or {LEAST_BASELINES} and more; five are better.",
        )
    times = [_log_times(tabled_run) for tabled_run in (run, *baselines)]
    changes = _changes(times)
    subjects = [CellKey(method, float(t), MEAN, load) for method, t in changes.index]
    for key in _subjects(times[1], load):
        if key not in subjects:
            yield Check("speed", "skipped", "this run or a baseline has no completion of it", key)
    if not subjects:
        return
    num_methods = len(subjects)
    rule = _SpeedRule(max_slowdown, GATE_ALPHA / ((num_methods + 1) * num_loads))
    of_methods = changes.to_numpy()  # [methods, pairs of runs]
    of_all = np.median(of_methods, axis=0)  # [pairs of runs]
    if num_methods > 1:
        relative = of_methods - of_all
        degrees = (num_baselines - 1) * (num_methods - 1)
        machine = _machine_variance(relative, num_baselines, degrees)
        for key, row in zip(subjects, relative, strict=True):
            change = float(row[:num_baselines].mean())
            yield _check(key, change, machine, rule, "than the run's other methods")
    whose = BASELINE if num_methods > 1 else subjects[0].method
    key = CellKey(whose, subjects[0].temperature, MEAN, load)
    machine = _machine_variance(of_all, num_baselines, num_baselines - 1)
    change = float(of_all[:num_baselines].mean())
    yield _check(key, change, machine, rule, "in all methods together")


def _log_times(tabled_run: TabledRun) -> Series:
    """Log time per token of a run's measured completions, by method and request."""
    import pandas as pd

    frame = tabled_run.table.frame
    done = frame[frame["is_measured"]]
    names = done.astype(dict.fromkeys(("method", "task", "sample_id"), object))
    logs = np.log(done["wall_s"] / done["num_tokens"]).to_numpy()
    return pd.Series(logs, pd.MultiIndex.from_frame(names[["method", *REQUEST_KEY]]))


def _changes(times: Sequence[Series]) -> DataFrame:
    """Log time per token in a run / in a later one: [method and temperature, pairs of runs].

    They are over the completions that all runs have. The first pairs are the first run's with
    each of the others.
    """
    import pandas as pd

    shared = pd.concat(times, axis=1, join="inner")
    pairs = {
        (i, j): shared[i] - shared[j]  # a column for each run
        for i, j in combinations(range(len(times)), 2)
    }
    changes = pd.DataFrame(pairs, index=shared.index)
    return changes.groupby(level=_SUBJECT, sort=False).median()


def _subjects(times: Series, load: Load) -> list[CellKey]:
    """The methods and temperatures of a run in sorted order."""
    levels = (times.index.get_level_values(name) for name in _SUBJECT)
    pairs = sorted({*zip(*levels, strict=True)})
    return [CellKey(method, float(temperature), MEAN, load) for method, temperature in pairs]


def _machine_variance(changes: FloatArray, num_baselines: int, degrees: int) -> Variance:
    """The variance of the next run's change against the mean of the baselines.

    With n baselines, and changes d between two of them:

        variance of one run = sum(d**2) / n / degrees
        variance of (next run - mean of n baselines) = variance of one run * (1 + 1 / n)

    For one method, sum(d**2) over the n (n - 1) / 2 pairs is n times the sum of squares around
    the mean, which has n - 1 degrees of freedom. The first n of the last axis are the run's own
    pairs with the baselines; those of two baselines come after them.
    """
    between_baselines = changes[..., num_baselines:]
    squares = float((between_baselines**2).sum()) / num_baselines
    return Variance(squares / degrees * (1 + 1 / num_baselines), degrees)


def _check(key: CellKey, change: float, machine: Variance, rule: _SpeedRule, against: str) -> Check:
    """The check of a mean change of log time per token, where equal runs have the variance
    `machine`. `against` says in words what the change is relative to.
    """
    allowed = math.log1p(rule.max_slowdown)
    half_width = quantile(machine.degrees, 1 - rule.level) * math.sqrt(machine.value)
    speed = without_spread(math.exp(-change))
    p_value = slower(speed, without_spread(1.0), rule.max_slowdown, machine)
    word = "slower" if change > 0 else "faster"
    text = f"{word} by {abs(math.expm1(change)) * 100:.1f} % {against}"
    text += f"; equal runs differ by up to {math.expm1(half_width) * 100:.1f} %"
    status: Status = "passed"
    is_blind = math.expm1(allowed + half_width) > MOST_UNSEEN
    if p_value is not None and p_value <= rule.level:
        status = "failed"
        text += f"; {rule.max_slowdown * 100:g} % is allowed"
    elif change > allowed or is_blind:
        status = "skipped"
        text = f"{CANNOT_TELL}: {text}"
    interval = Interval(math.expm1(change - half_width), math.expm1(change + half_width))
    slowdown = Estimate(math.expm1(change), interval)
    return Check("speed", status, text, key, value=slowdown, allowed=rule.max_slowdown)
