"""Compute arithmetic means over tasks. A method that lacks a task has no mean."""

from collections.abc import Mapping, Sequence

from specbench.analysis.records import BASELINE
from specbench.analysis.stats.combining import mean
from specbench.analysis.stats.estimates import Estimate, Missing, Value


def means_of_methods(rows: Mapping[str, Sequence[Value]]) -> dict[str, Value]:
    """Compute each method's mean over tasks, from its row with a value per task.

    Readers compare the means of methods, so a method that lacks a task of another method gets no
    mean. Tasks that only the baseline has are left out.
    """
    task_indices = _counted_tasks(rows)
    return {
        method: mean_over_tasks([row[index] for index in task_indices])
        for method, row in rows.items()
    }


def _counted_tasks(rows: Mapping[str, Sequence[Value]]) -> list[int]:
    """Find the indices of the tasks that the means include.

    They are the tasks for which any method except the baseline has a number. The baseline counts
    too if it is the only method. If no task has a number, all tasks are included.
    """
    other_rows = [row for method, row in rows.items() if method != BASELINE] or list(rows.values())
    columns = list(zip(*other_rows, strict=True))
    measured = [
        index
        for index, column in enumerate(columns)
        if any(isinstance(value, Estimate) for value in column)
    ]
    return measured or list(range(len(columns)))


def mean_over_tasks(values: Sequence[Value]) -> Value:
    """Compute the arithmetic mean of the values of tasks; missing if any value is missing."""
    estimates = [value for value in values if isinstance(value, Estimate)]
    if estimates:
        return reason_if_partial(len(estimates), len(values)) or mean(estimates)
    reasons = {value.reason for value in values if isinstance(value, Missing)}
    return Missing(reasons.pop() if len(reasons) == 1 else "no task measured")


def reason_if_partial(num_measured: int, num_tasks: int) -> Missing | None:
    """Return the reason why a mean over some of the tasks cannot be compared with other means.

    None if `num_measured` is 0 or `num_tasks`.
    """
    if 0 < num_measured < num_tasks:
        return Missing(f"{num_measured} of {num_tasks} tasks")
    return None
