"""All numbers as one tidy table: a line per run, temperature, method and task, for machines.

Knows column names. A number that is missing is an empty field, and its reason stands in the column
`speedup_missing` or `mat_missing`. Two more lines per method are over all tasks: "mean" has the
arithmetic means of the tasks' values, "pooled" takes all tasks as one.

A second table has a line per depth: how often guesses there were accepted.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from io import StringIO

from specbench.analysis.cells import CellMetrics
from specbench.analysis.costs import Cost
from specbench.analysis.latency import Percentiles
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.stats import Estimate, Missing, Value

# fmt: off
COLUMNS = (
    "run", "model", "is_stand_in", "dtype", "temperature", "method", "title", "is_lossless", "task",
    "speedup", "speedup_low", "speedup_high", "speedup_missing",
    "arithmetic", "speedup_ours", "speedup_paper",
    "decode_speedup", "decode_speedup_low", "decode_speedup_high",
    "mat", "mat_low", "mat_high", "mat_missing", "mat_macro",
    "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "match_rate",
    "first_token_s_p50", "first_token_s_p90", "first_token_s_p99",
    "per_token_s_p50", "per_token_s_p90", "per_token_s_p99",
    "num_samples", "num_pairs", "num_done", "num_failed", "num_tokens", "num_steps",
    "step_s", "relative_step_cost", "draft_s", "verify_s", "commit_s", "host_s",
    "limit", "limit_reached", "joules_per_token", "peak_memory_bytes",
)
POSITION_COLUMNS = (
    "run", "model", "temperature", "method", "task", "depth", "num_reached", "num_accepted",
    "conditional", "conditional_low", "conditional_high",
    "unconditional", "unconditional_low", "unconditional_high",
)
# fmt: on

Field = str | int | float | bool | None


def to_csv(runs: Sequence[RunMetrics]) -> str:
    """The lines of `tidy_rows` as CSV."""
    return _csv(COLUMNS, (row for run in runs for row in tidy_rows(run)))


def to_positions_csv(runs: Sequence[RunMetrics]) -> str:
    """The lines of `position_rows` as CSV."""
    return _csv(POSITION_COLUMNS, (row for run in runs for row in position_rows(run)))


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Field]]) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def tidy_rows(run: RunMetrics) -> Iterable[Mapping[str, Field]]:
    """One mapping per cell, then the lines over all tasks, in the table's order."""
    for temperature in run.temperatures:
        for method in run.methods:
            start = _identity(run, method, temperature)
            for task in run.tasks:
                costs = _cost(run.cost(method, temperature, task))
                yield {**start, "task": task, **_cell(run.cell(method, temperature, task)), **costs}
            overall = run.overall[method, temperature]
            yield {
                **start,
                "task": "mean",
                **_numbers("speedup", overall.speedup),
                "speedup_missing": _reason(overall.speedup),
                **_numbers("decode_speedup", overall.decode_speedup),
                **_numbers("mat", overall.mat),
                "mat_missing": _reason(overall.mat),
            }
            costs = _cost(run.cost(method, temperature))
            yield {**start, "task": "pooled", **_cell(overall.pooled), **costs}


def position_rows(run: RunMetrics) -> Iterable[Mapping[str, Field]]:
    """One mapping per cell and depth at which a guess was accepted, "pooled" tasks last."""
    for temperature in run.temperatures:
        for method in run.methods:
            identity = _identity(run, method, temperature)
            start = {name: identity[name] for name in POSITION_COLUMNS if name in identity}
            tasks = {task: run.cell(method, temperature, task) for task in run.tasks}
            for task, cell in {**tasks, "pooled": run.pooled(method, temperature)}.items():
                for position in cell.positions:
                    yield {
                        **start,
                        "task": task,
                        "depth": position.depth,
                        "num_reached": position.num_reached,
                        "num_accepted": position.num_accepted,
                        **_numbers("conditional", position.conditional),
                        **_numbers("unconditional", position.unconditional),
                    }


def _identity(run: RunMetrics, method: str, temperature: float) -> dict[str, Field]:
    about = run.info.method(method)
    return {
        "run": run.info.id,
        "model": run.info.model,
        "is_stand_in": run.info.is_stand_in,
        "dtype": run.info.dtype,
        "temperature": temperature,
        "method": method,
        "title": about.title,
        "is_lossless": about.is_lossless,
        "arithmetic": run.arithmetic,
    }


def _cell(cell: CellMetrics) -> dict[str, Field]:
    return {
        **_numbers("speedup", cell.speedup),
        "speedup_missing": _reason(cell.speedup),
        "speedup_ours": _number(cell.our_speedup),
        "speedup_paper": _number(cell.paper_speedup),
        **_numbers("decode_speedup", cell.decode_speedup),
        **_numbers("mat", cell.mat),
        "mat_missing": _reason(cell.mat),
        "mat_macro": _number(cell.mat_macro),
        **_numbers("tokens_per_s", cell.tokens_per_s),
        "match_rate": _number(cell.match_rate),
        **_percentiles("first_token_s", cell.latency.first_token),
        **_percentiles("per_token_s", cell.latency.per_token),
        "num_samples": cell.num_samples,
        "num_pairs": cell.num_pairs,
        "num_done": cell.num_done,
        "num_failed": cell.num_failed,
        "num_tokens": cell.num_tokens,
        "num_steps": cell.num_steps,
    }


def _cost(cost: Cost) -> dict[str, Field]:
    """The phases are seconds a step, as `step_s` is."""
    phases = asdict(cost.phases) if cost.phases else {}
    return {
        "step_s": _number(cost.step_s),
        "relative_step_cost": _number(cost.relative),
        **phases,
        "limit": _number(cost.limit),
        "limit_reached": _number(cost.reached),
        "joules_per_token": _number(cost.joules_per_token),
        "peak_memory_bytes": cost.peak_memory_bytes,
    }


def _percentiles(name: str, times: Percentiles) -> dict[str, Field]:
    values = {"p50": times.p50, "p90": times.p90, "p99": times.p99}
    return {f"{name}_{which}": _number(value) for which, value in values.items()}


def _numbers(name: str, value: Value) -> dict[str, Field]:
    interval = value.interval if isinstance(value, Estimate) else None
    return {
        name: _number(value),
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
    }


def _number(value: Value) -> float | None:
    return value.value if isinstance(value, Estimate) else None


def _reason(value: Value) -> str | None:
    return value.reason if isinstance(value, Missing) else None
