"""Speed of a run against a pool of baseline runs, whose spread predicts the next run.

The change of a method between two runs is the median, over its completions, of the logarithm of the
ratio of their times: bursts of a busy machine hit some completions only. A change of all methods
alike, which is the machine's or the engine's, is a number of its own, and the methods' are relative
to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.cells import CellKey
from specbench.analysis.columns import BASELINE, REQUEST_KEY
from specbench.analysis.records import make_table
from specbench.analysis.stats.bootstrap import Estimate, Interval, quantile, without_spread
from specbench.analysis.stats.effects import FloatArray, Variance
from specbench.analysis.stats.significance import GATE_ALPHA, slower
from specbench.errors import UserError
from specbench.judge.checks import Check, Status
from specbench.judge.comparison import MEAN
from specbench.log.loads import NO_LOAD, Load
from specbench.log.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_BASELINES = 3
"""The spread of two runs has one degree of freedom: it predicts nothing."""
MOST_UNSEEN = 0.2
"""A slowdown up to which a check must see; one that sees less cannot tell."""


def check_speeds(
    run: Run,
    baselines: Sequence[Run],
    max_slowdown: float,
    load: Load = NO_LOAD,
    num_loads: int = 1,
) -> Iterator[Check]:
    """A check of each method and temperature, and, under vanilla, one of all methods together.

    `load` is that of all these runs, one of `num_loads` that are checked.

    Raises:
        UserError: there are too few baselines to know their spread.
    """
    num = len(baselines)
    if num < LEAST_BASELINES:
        where = f" at {load.text}" if load.text else ""
        raise UserError(
            f"{num} baselines{where} do not show how far equal runs differ.",
            f"Give one, or {LEAST_BASELINES} and more; five are better.",
        )
    changes = _changes([run, *baselines])
    if not len(changes):
        return
    values = changes.to_numpy()  # [methods, pairs of runs]
    whole = np.median(values, axis=0)
    level = GATE_ALPHA / ((len(values) + 1) * num_loads)
    if len(values) > 1:
        relative = values - whole
        spread = _spread(relative, num, degrees=(num - 1) * (len(values) - 1))
        for (method, temperature), row in zip(changes.index, relative, strict=True):
            key = CellKey(method, float(temperature), MEAN, load)
            change = float(row[:num].mean())
            yield _check(key, change, spread, max_slowdown, level, "than the run's other methods")
    key = CellKey(BASELINE, float(changes.index[0][1]), MEAN, load)
    spread = _spread(whole, num, degrees=num - 1)
    change = float(whole[:num].mean())
    yield _check(key, change, spread, max_slowdown, level, "in all methods together")


def _changes(runs: Sequence[Run]) -> DataFrame:
    """Log time per token in a run / in a later one: [method and temperature, pairs of runs]."""
    import pandas as pd

    columns = []
    for run in runs:
        frame = make_table(run.records).frame
        done = frame[frame["is_measured"]]
        names = done.astype(dict.fromkeys(("method", "task", "sample_id"), object))
        logs = np.log(done["wall_s"] / done["num_tokens"]).to_numpy()
        columns.append(pd.Series(logs, pd.MultiIndex.from_frame(names[["method", *REQUEST_KEY]])))
    times = pd.concat(columns, axis=1, join="inner")
    pairs = {(i, j): times[i] - times[j] for i, j in combinations(range(len(runs)), 2)}
    changes = pd.DataFrame(pairs, index=times.index)
    return changes.groupby(level=["method", "temperature"], sort=False).median()


def _spread(changes: FloatArray, num: int, degrees: int) -> Variance:
    """The variance of the next run's change against the mean of `num` baselines.

    A run's variance is half the mean square of the changes between baselines; those come after the
    first `num` pairs, which are the run's with each baseline.
    """
    squares = float((changes[..., num:] ** 2).sum()) / num  # of num * (num - 1) / 2 pairs
    return Variance(squares / degrees * (1 + 1 / num), degrees)


def _check(
    key: CellKey,
    change: float,
    machine: Variance,
    max_slowdown: float,
    level: float,
    against: str,
) -> Check:
    """The check of a change of log time per token, where equal runs have the variance `machine`."""
    half = quantile(machine.degrees, 1 - level) * math.sqrt(machine.value)
    p_value = slower(without_spread(math.exp(-change)), without_spread(1.0), max_slowdown, machine)
    status: Status = "passed"
    word = "slower" if change > 0 else "faster"
    text = f"{word} by {abs(math.expm1(change)) * 100:.1f} % {against}"
    text += f"; equal runs differ by up to {math.expm1(half) * 100:.1f} %"
    limit = math.log1p(max_slowdown)
    if p_value is not None and p_value <= level:
        status = "failed"
        text += f"; {max_slowdown * 100:g} % is allowed"
    elif change > limit or math.expm1(limit + half) > MOST_UNSEEN:
        status, text = "skipped", f"cannot tell: {text}"
    span = Interval(math.expm1(change - half), math.expm1(change + half))
    return Check("speed", status, text, key, Estimate(math.expm1(change), span), max_slowdown)
