"""Compute the number that a side's source prints, by the source's way of averaging."""

from collections.abc import Callable, Mapping
from functools import partial

from specbench.analysis.answer_pairs import Arithmetic
from specbench.analysis.drawn_sums import Sums
from specbench.analysis.stats.arrays import FloatArray


def over_tasks(by_task: Sums) -> Sums:
    """Add up sums by task [tasks, 1 + resamples] over all tasks [1 + resamples]."""
    return {name: column.sum(axis=0) for name, column in by_task.items()}


def speedup(sums: Sums, tokens: str) -> FloatArray:
    """Divide tokens per second by vanilla's. `tokens` names the column that counts the tokens."""
    return sums[tokens] * sums["base_wall_s"] / (sums["wall_s"] * sums[f"base_{tokens}"])


def _quotient(by_task: Sums, *, top: str, bottom: str) -> FloatArray:
    quotient: FloatArray = by_task[top].sum(axis=0) / by_task[bottom].sum(axis=0)
    return quotient


def _of_totals(by_task: Sums) -> FloatArray:
    return speedup(over_tasks(by_task), "counted_tokens")


def _mean_of_tasks(by_task: Sums) -> FloatArray:
    mean: FloatArray = speedup(by_task, "counted_tokens").mean(axis=0)
    return mean


PRINTED_NUMBERS: Mapping[Arithmetic, Callable[[Sums], FloatArray]] = {
    "tasks": _mean_of_tasks,
    "totals": _of_totals,
    "rates": partial(_quotient, top="rate", bottom="base_rate"),
    "ratios": partial(_quotient, top="rate_ratio", bottom="questions"),
}
"""Arithmetic -> the function that computes the printed number [1 + resamples] from sums by task
[tasks, 1 + resamples].
"""
