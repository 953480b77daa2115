"""Warn about pools in which vanilla's speed changed from run to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.records import BASELINE
from specbench.analysis.warnings import RunWarning

if TYPE_CHECKING:
    from pandas import DataFrame

_REQUEST = ["temperature", "task", "sample_id", "turn", "concurrency", "request_rate"]
"""The columns that identify a request, without its pass."""


def find_changed_pools(frame: DataFrame) -> Iterator[RunWarning]:
    """Yield a warning if vanilla's times differ more between pooled runs than between their passes.

    The time of a pass is the mean logarithm of vanilla's seconds per token, over the requests that
    vanilla finished in every pass without a pause of the machine; the time of a run is the mean
    over its passes. The warning has

        change = exp(largest - smallest time of a run) - 1
        passes = exp(largest - smallest time of a pass in one run) - 1, the largest over all runs

    There is no warning with a single run, or if any run has a single pass. `frame` is the frame of
    a `RecordTable`. `repeat` is the number of the pass, counted over all runs. `unit` is the number
    of the run in a pool. Without a pool it is the number of the pass, and there is no warning.
    `is_measured` is False for failed records.
    """
    rows = frame[(frame["method"] == BASELINE) & frame["is_measured"] & ~frame["is_paused"]]
    run_of_pass = rows.groupby("repeat")["unit"].first()  # number of the pass -> number of its run
    passes_per_run = run_of_pass.value_counts()
    if len(passes_per_run) < 2 or passes_per_run.min() < 2:
        return
    timed_rows = rows.assign(log_token_s=np.log(rows["wall_s"] / rows["num_tokens"]))
    # log seconds per token: a row per request, a column per pass
    log_times = timed_rows.pivot_table("log_token_s", _REQUEST, "repeat", observed=True)
    # for each pass: the mean over the requests that all passes have
    log_time_of_pass = log_times.dropna().mean()
    log_times_by_run = log_time_of_pass.groupby(run_of_pass)
    # Differences of log times: between the runs, and the largest between passes of one run.
    between_runs = log_times_by_run.mean().max() - log_times_by_run.mean().min()
    within_runs = (log_times_by_run.max() - log_times_by_run.min()).max()
    if between_runs > within_runs:
        numbers = {"change": float(np.expm1(between_runs)), "passes": float(np.expm1(within_runs))}
        yield RunWarning("changed_pool", numbers)
