"""The warning about pooled runs between which vanilla changed its speed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.records import BASELINE
from specbench.analysis.warnings import RunWarning

if TYPE_CHECKING:
    from pandas import DataFrame

_REQUEST = ["temperature", "task", "sample_id", "turn", "concurrency", "request_rate"]
"""The columns of a request that is the same in every pass."""


def find_changed_pools(frame: DataFrame) -> Iterator[RunWarning]:
    """Yield a warning if vanilla's times differ more between pooled runs than between their passes.

    `frame` is the frame of a `RecordTable`. Times are seconds per token, over the requests that
    vanilla finished in every pass. One pass per run cannot show how much passes differ.

        change = exp(largest - smallest mean log time of a run) - 1
        passes = exp(largest - smallest mean log time of a pass) - 1, in the run where it is largest
    """
    rows = frame[(frame["method"] == BASELINE) & frame["is_measured"] & ~frame["is_paused"]]
    run_of_pass = rows.groupby("repeat")["unit"].first()  # `unit`: the run of a pool
    passes_per_run = run_of_pass.value_counts()
    if len(passes_per_run) < 2 or passes_per_run.min() < 2:
        return
    rows = rows.assign(log_token_s=np.log(rows["wall_s"] / rows["num_tokens"]))
    times = rows.pivot_table("log_token_s", _REQUEST, "repeat", observed=True)
    pass_times = times.dropna().mean()  # over requests; by pass
    by_run = pass_times.groupby(run_of_pass)
    between = by_run.mean().max() - by_run.mean().min()
    within = (by_run.max() - by_run.min()).max()
    if between > within:
        numbers = {"change": float(np.expm1(between)), "passes": float(np.expm1(within))}
        yield RunWarning("changed_pool", numbers)
