"""Speed of a run against several baseline runs, whose spread tells how far equal runs differ.

The log time per token of each completion is compared with the baselines' median of the same
completion, and a method's change is the median over its completions: bursts of a busy machine hit
some completions only. A change of all methods alike, which is the machine's or the engine's, is a
number of its own, and the methods' are relative to it.

The same numbers of each baseline against the others are what equal runs give: their spread makes
prediction intervals (Student's t, one-sided, divided by the number of tests).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.frames import REQUEST_KEY
from specbench.analysis.records import make_table
from specbench.analysis.stats.bootstrap import Estimate, Interval
from specbench.analysis.stats.significance import ERROR_RATE
from specbench.errors import UserError
from specbench.judge.checks import Check, Status
from specbench.judge.comparison import MEAN
from specbench.log.loads import NO_LOAD, Load
from specbench.log.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_BASELINES = 3
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
    if len(baselines) < LEAST_BASELINES:
        where = f" at {load.text}" if load.text else ""
        raise UserError(
            f"{len(baselines)} baselines{where} do not show how far equal runs differ.",
            f"Give one, or {LEAST_BASELINES} and more; five are better.",
        )
    times = _times([run, *baselines])
    if not len(times):
        return
    changes = _changes(times)  # [methods, runs]: the run, then the baselines
    values = changes.to_numpy()
    whole = np.median(values, axis=0)
    relative = values - whole
    num_baselines, num_methods = len(baselines), len(values)
    spread = math.sqrt(float((relative[:, 1:] ** 2).mean()))
    degrees = (num_baselines - 1) * max(num_methods - 1, 1)
    level = ERROR_RATE / ((num_methods + 1) * num_loads)
    half = _quantile(degrees, level) * spread
    if num_methods > 1:
        for (method, temperature), change in zip(changes.index, relative[:, 0], strict=True):
            key = CellKey(method, float(temperature), MEAN, load)
            yield _check(key, float(change), half, max_slowdown, "than the run's other methods")
    whole_half = _quantile(num_baselines - 1, level) * float(np.std(whole[1:], ddof=1))
    temperature = float(changes.index[0][1])
    key = CellKey(BASELINE, temperature, MEAN, load)
    yield _check(key, float(whole[0]), whole_half, max_slowdown, "in all methods together")


def _times(runs: Sequence[Run]) -> DataFrame:
    """Log seconds per token [completions, runs] of the completions that all runs finished."""
    import pandas as pd

    columns = []
    for run in runs:
        frame = make_table(run.records).frame
        done = frame[frame["is_measured"]]
        names = done.astype(dict.fromkeys(("method", "task", "sample_id"), object))
        logs = np.log(done["wall_s"] / done["num_tokens"])
        columns.append(pd.Series(logs.to_numpy(), pd.MultiIndex.from_frame(names[_KEY])))
    return pd.concat(columns, axis=1, join="inner")


_KEY = ["method", *REQUEST_KEY]


def _changes(times: DataFrame) -> DataFrame:
    """The change of each run against the baselines but itself [method and temperature, runs]."""
    values = times.to_numpy()
    against = [values[:, 0] - np.median(values[:, 1:], axis=1)]
    for i in range(1, values.shape[1]):
        others = np.delete(values[:, 1:], i - 1, axis=1)
        against.append(values[:, i] - np.median(others, axis=1))
    frame = times.copy()
    frame[:] = np.stack(against, axis=1)
    return frame.groupby(level=["method", "temperature"], sort=False).median()


def _quantile(degrees: float, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 1 - level))


def _check(key: CellKey, change: float, half: float, max_slowdown: float, against: str) -> Check:
    limit = math.log1p(max_slowdown)
    status: Status = "passed"
    word = "slower" if change > 0 else "faster"
    text = f"{word} by {abs(math.expm1(change)) * 100:.1f} % {against}"
    text += f"; equal runs differ by up to {math.expm1(half) * 100:.1f} %"
    if change - half > limit:
        status = "failed"
        text += f"; {max_slowdown * 100:g} % is allowed"
    elif change > limit or math.expm1(limit + half) > MOST_UNSEEN:
        status = "skipped"
        text = f"cannot tell: {text}"
    span = Interval(math.expm1(change - half), math.expm1(change + half))
    return Check("speed", status, text, key, Estimate(math.expm1(change), span), max_slowdown)
