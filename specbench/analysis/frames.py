"""Put the numbers of a run into pandas frames, for the CSV file and notebooks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specbench.analysis.cells import CellMetrics
from specbench.analysis.columns import value_columns, value_or_none
from specbench.analysis.costs import Cost
from specbench.analysis.latency import Percentiles
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.pooled_columns import pooled_columns
from specbench.analysis.records import CELL_KEY, PHASES

if TYPE_CHECKING:
    from pandas import DataFrame


def summary_frame(metrics: RunMetrics) -> DataFrame:
    """Put the numbers of a run into a frame: one row per method, temperature and task.

    Rows are sorted by temperature, method and task, in the run's order. After its tasks, a method
    at a temperature has two more rows. The task "mean" has the arithmetic means of the tasks; the
    task "pooled" has all tasks as one cell. Rows "pooled" have MAT in `mat_all_steps`, and only
    they have the columns of `pooled_columns`. `*_low` and `*_high` are the ends of the 95 %
    interval, `*_missing` is the reason for a missing number, or None. Columns `num_*` and
    `peak_memory_bytes` are nullable integers, all other numbers are floats. Columns of phases (the
    parts of a step, such as `verify_s`) are in seconds per step.
    """
    import pandas as pd

    rows = [  # a row maps column names to numbers or texts
        row
        for temperature in metrics.temperatures
        for method in metrics.methods
        for row in _rows_of_method(metrics, method, temperature)
    ]
    frame = pd.DataFrame(rows)
    # all columns except method, temperature and task
    for column_name in frame.columns.difference(CELL_KEY, sort=False):
        column = frame[column_name]
        if column_name.endswith("_missing"):
            frame[column_name] = column.astype(object).where(column.notna(), None)
        elif column_name.startswith("num_") or column_name == "peak_memory_bytes":
            frame[column_name] = column.astype("Int64")
        else:
            frame[column_name] = column.astype("float64")
    return frame.copy()  # A copy lies in one block of memory, so that columns are cheap to add.


def _rows_of_method(metrics: RunMetrics, method: str, temperature: float) -> list[dict[str, Any]]:
    """Make a method's rows at a temperature: its tasks, their means, and all tasks as one cell.

    A row maps column names to numbers or texts; a missing number is None. A `cell` has numbers of
    answers and their speed, a `cost` has the time of a step, energy and memory. `metrics.overall`
    has the means over tasks, and the cell of all tasks as `pooled`.
    """
    key_columns = {"method": method, "temperature": temperature}
    rows = []
    for task in metrics.tasks:
        cell = metrics.cell(method, temperature, task)
        cost = metrics.cost(method, temperature, task)
        rows.append({**key_columns, "task": task, **_cell(cell), **_cost(cost)})

    overall = metrics.overall[method, temperature]
    # For each metric: the number, both ends of its interval, and the reason if it is missing.
    mean_columns = {
        **value_columns("speedup", overall.speedup),
        **value_columns("decode_speedup", overall.decode_speedup),
        **value_columns("mat", overall.mat),
    }
    rows.append({**key_columns, "task": "mean", **mean_columns})

    pooled_cost = metrics.cost(method, temperature)  # all tasks together
    all_tasks = {**_cell(overall.pooled), **_cost(pooled_cost)}
    # This MAT is over the steps of all tasks. In the row "mean", `mat` is the mean of the tasks.
    all_tasks["mat_all_steps"] = all_tasks.pop("mat")
    only_pooled = pooled_columns(metrics, method, temperature)  # columns that no other row has
    rows.append({**key_columns, "task": "pooled", **all_tasks, **only_pooled})
    return rows


def _cell(cell: CellMetrics) -> dict[str, Any]:
    counts = ("num_samples", "num_pairs", "num_done", "num_failed", "num_tokens", "num_steps")
    return {
        **value_columns("speedup", cell.speedup),
        "speedup_ours": value_or_none(cell.our_speedup),
        "speedup_paper": value_or_none(cell.paper_speedup),
        **value_columns("decode_speedup", cell.decode_speedup),
        **value_columns("mat", cell.mat),
        "mat_macro": value_or_none(cell.mat_macro),
        **value_columns("tokens_per_s", cell.tokens_per_s),
        "match_rate": value_or_none(cell.match_rate),
        **_percentile_columns("first_token_s", cell.latency.first_token),
        **_percentile_columns("per_token_s", cell.latency.per_token),
        **{name: getattr(cell, name) for name in counts},
    }


def _percentile_columns(name: str, percentiles: Percentiles) -> dict[str, float | None]:
    return {
        f"{name}_p50": value_or_none(percentiles.p50),
        f"{name}_p90": value_or_none(percentiles.p90),
        f"{name}_p99": value_or_none(percentiles.p99),
    }


def _cost(cost: Cost) -> dict[str, Any]:
    phases = asdict(cost.phases) if cost.phases else dict.fromkeys(PHASES)
    return {
        "step_s": value_or_none(cost.step_s),
        "relative_step_cost": value_or_none(cost.relative),
        **phases,
        "limit": value_or_none(cost.bound),
        "limit_reached": value_or_none(cost.reached),
        "joules_per_token": value_or_none(cost.joules_per_token),
        "peak_memory_bytes": cost.peak_memory_bytes,
    }


def step_bins_frame(metrics: RunMetrics) -> DataFrame:
    """Make a frame with one row per bin of steps, for each temperature and method that drafts.

    The columns are `method`, `temperature`, `axis` (position in the answer, context length, or
    turn), `low` and `high` (which the bin excludes), `num_prompts`, `num_steps`, then `mat` and
    `acceptance` with the ends of their intervals; `*_missing` is the reason for a missing number,
    or None.
    """
    import pandas as pd

    names = ("axis", "low", "high", "num_prompts", "num_steps")
    rows = [
        {
            "method": method,
            "temperature": temperature,
            **{name: getattr(step_bin, name) for name in names},
            **value_columns("mat", step_bin.mat),
            **value_columns("acceptance", step_bin.acceptance),
        }
        for (method, temperature), step_bins in metrics.step_bins.items()
        for step_bin in step_bins
    ]
    return pd.DataFrame(rows)
