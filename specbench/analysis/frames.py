"""Records and results as pandas frames: for analysis, the CSV files and notebooks.

Knows columns and dtypes. Computes no statistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.types import Phases, Record

if TYPE_CHECKING:
    from pandas import DataFrame

    from specbench.analysis.cells import CellMetrics
    from specbench.analysis.costs import Cost
    from specbench.analysis.metrics import RunMetrics

CELL_KEY = ["method", "temperature", "task"]
"""The columns that identify a cell."""
REQUEST_KEY = [
    "temperature", "task", "sample_id", "turn", "repeat", "concurrency", "request_rate",
]  # fmt: skip
"""The columns that identify a request over methods and runs."""
_WHOLE_KEYS = ("turn", "repeat", "concurrency")
PHASES = [phase.name for phase in fields(Phases)]


def records_frame(records: Sequence[Record]) -> DataFrame:
    """One row a record, in the order of the records.

    - `method`, `task`, `sample_id`, `status`, `stop_reason`, `worker`: categories.
    - `turn`, `repeat`, `concurrency`, `seed`, `prompt_tokens`, `num_tokens`, `num_steps` and
      `num_emitted` (tokens that steps emitted): integers.
    - `temperature`, `request_rate`, `prefill_s`, `decode_s`, `wall_s`, `energy_j`,
      `peak_memory_bytes`, and `draft_s`, `verify_s`, `commit_s`, `host_s` (sums over the record's
      steps): floats. NaN stands for what was not measured.
    - `is_measured`: True if the record has tokens and a time. Any other record counts as failed.
    - `error`: the text, or None.
    """
    import pandas as pd

    keys = [record.key for record in records]
    phases = [record.phases for record in records]
    categories = {
        **{name: [getattr(key, name) for key in keys] for name in ("method", "task", "sample_id")},
        "status": [record.status for record in records],
        "stop_reason": [record.stop_reason for record in records],
        "worker": [record.worker for record in records],
    }
    integers = {
        **{name: [getattr(key, name) for key in keys] for name in _WHOLE_KEYS},
        **{name: [getattr(one, name) for one in records] for name in ("seed", "prompt_tokens")},
        "num_tokens": [record.num_tokens for record in records],
        "num_steps": [len(record.accept_lengths) for record in records],
        "num_emitted": [sum(record.accept_lengths) for record in records],
    }
    floats = {
        **{name: [getattr(key, name) for key in keys] for name in ("temperature", "request_rate")},
        "prefill_s": [record.prefill_s for record in records],
        "decode_s": [record.decode_s for record in records],
        "wall_s": [record.wall_s for record in records],
        "energy_j": [record.energy_j for record in records],
        "peak_memory_bytes": [record.peak_memory_bytes for record in records],
        **{name: [one and getattr(one, name) for one in phases] for name in PHASES},
    }
    frame = pd.DataFrame(
        {name: pd.Categorical(column) for name, column in categories.items()}
        | {name: np.array(column, dtype=np.int64) for name, column in integers.items()}
        | {name: np.array(column, dtype=np.float64) for name, column in floats.items()}
        | {"error": pd.Series([record.error for record in records], dtype=object)}
    )
    frame["is_measured"] = (
        (frame["status"] == "ok")
        & (frame["num_tokens"] > 0)
        & (frame["wall_s"] > 0)
        & (frame["wall_s"] < np.inf)
    )
    return frame


def summary_frame(metrics: RunMetrics) -> DataFrame:
    """One row a cell: method, temperature and task, in the order of the report's table.

    Two more rows a method and temperature have the task "mean" (the arithmetic means of the tasks)
    and "pooled" (all tasks as one cell). A column `speedup_low` or `speedup_high` is an end of the
    95 % interval, `speedup_missing` the reason for a missing value, or None.
    Columns `num_*` and `peak_memory_bytes` are nullable integers, all other numbers are floats.
    Phases are seconds a step.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for temperature in metrics.temperatures:
        for method in metrics.methods:
            overall = metrics.overall[method, temperature]
            cells = {task: metrics.cell(method, temperature, task) for task in metrics.tasks}
            key = {"method": method, "temperature": temperature}
            for task, cell in cells.items():
                cost = metrics.cost(method, temperature, task)
                rows.append({**key, "task": task, **_cell(cell), **_cost(cost)})
            mean = {
                **value_columns("speedup", overall.speedup),
                **value_columns("decode_speedup", overall.decode_speedup),
                **value_columns("mat", overall.mat),
            }
            rows.append({**key, "task": "mean", **mean})
            cost = metrics.cost(method, temperature)
            rows.append({**key, "task": "pooled", **_cell(overall.pooled), **_cost(cost)})
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
