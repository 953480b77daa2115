"""The numbers of a run as a pandas frame, for the CSV file and notebooks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specbench.analysis.cells import CellMetrics
from specbench.analysis.costs import Cost
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.records import CELL_KEY, PHASES
from specbench.analysis.stats.estimates import Estimate, Missing, Value

if TYPE_CHECKING:
    from pandas import DataFrame


def summary_frame(metrics: RunMetrics) -> DataFrame:
    """One row a cell: method, temperature and task, in the order of the report's table.

    Two more rows a method and temperature have the task "mean" (the arithmetic means of the
    tasks) and "pooled" (all tasks as one cell), whose MAT is `mat_all_steps`. A column
    `speedup_low` or `speedup_high` is an end of the 95 % interval, `speedup_missing` the reason
    for a missing value, or None. Columns `num_*` and `peak_memory_bytes` are nullable integers,
    all other numbers are floats. Phases are seconds a step.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for temperature in metrics.temperatures:
        for method in metrics.methods:
            overall = metrics.overall[method, temperature]
            key = {"method": method, "temperature": temperature}
            for task in metrics.tasks:
                cell = metrics.cell(method, temperature, task)
                cost = metrics.cost(method, temperature, task)
                rows.append({**key, "task": task, **_cell(cell), **_cost(cost)})
            mean: dict[str, Any] = {"task": "mean"}
            for name in ("speedup", "decode_speedup", "mat"):
                mean |= value_columns(name, getattr(overall, name))
            rows.append(key | mean)
            cost = metrics.cost(method, temperature)
            pooled = {**_cell(overall.pooled), **_cost(cost)}
            pooled["mat_all_steps"] = pooled.pop("mat")
            rows.append({**key, "task": "pooled", **pooled})
    frame = pd.DataFrame(rows)
    for name in frame.columns.difference(CELL_KEY, sort=False):
        if name.endswith("_missing"):
            frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
        else:
            is_integer = name.startswith("num_") or name == "peak_memory_bytes"
            frame[name] = frame[name].astype("Int64" if is_integer else "float64")
    return frame


def _cell(cell: CellMetrics) -> dict[str, Any]:
    counts = ("num_samples", "num_pairs", "num_done", "num_failed", "num_tokens", "num_steps")
    times = {"first_token_s": cell.latency.first_token, "per_token_s": cell.latency.per_token}
    return {
        **value_columns("speedup", cell.speedup),
        "speedup_ours": value_or_none(cell.our_speedup),
        "speedup_paper": value_or_none(cell.paper_speedup),
        **value_columns("decode_speedup", cell.decode_speedup),
        **value_columns("mat", cell.mat),
        "mat_macro": value_or_none(cell.mat_macro),
        **value_columns("tokens_per_s", cell.tokens_per_s),
        "match_rate": value_or_none(cell.match_rate),
        **{
            f"{name}_{percentile}": value_or_none(getattr(percentiles, percentile))
            for name, percentiles in times.items()
            for percentile in ("p50", "p90", "p99")
        },
        **{name: getattr(cell, name) for name in counts},
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "step_s": value_or_none(cost.step_s),
        "relative_step_cost": value_or_none(cost.relative),
        **(asdict(cost.phases) if cost.phases else dict.fromkeys(PHASES)),
        "limit": value_or_none(cost.limit),
        "limit_reached": value_or_none(cost.reached),
        "joules_per_token": value_or_none(cost.joules_per_token),
        "peak_memory_bytes": cost.peak_memory_bytes,
    }


def value_columns(name: str, value: Value) -> dict[str, Any]:
    """Columns of a value: the value, both ends of its interval, and the reason if missing."""
    interval = value.interval if isinstance(value, Estimate) else None
    return {
        name: value_or_none(value),
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
        f"{name}_missing": value.reason if isinstance(value, Missing) else None,
    }


def value_or_none(value: Value) -> float | None:
    """The value without its interval; None if it is missing."""
    return value.value if isinstance(value, Estimate) else None
