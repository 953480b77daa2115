"""Compute numbers over all tasks, and find the methods, temperatures and tasks of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from specbench.analysis.cells import CellKey, CellMetrics
from specbench.analysis.means import means_of_methods, reason_if_partial
from specbench.analysis.records import BASELINE, POOLED
from specbench.analysis.stats.estimates import Missing, Value
from specbench.log.header import RunHeader

if TYPE_CHECKING:
    from pandas import DataFrame


class Axes(NamedTuple):
    """The axes along which the cells of a run differ."""

    methods: tuple[str, ...]
    """The baseline, then the other requested methods, then methods that only the records have."""

    temperatures: tuple[float, ...]
    """The temperatures in increasing order."""

    tasks: tuple[str, ...]
    """The requested tasks, then tasks that only the records have."""


def axes_of(header: RunHeader, frame: DataFrame) -> Axes:
    """List the methods, temperatures and tasks of a run: those requested, and those of its records.

    `header` describes the run; `frame` has a row per record.
    """
    requested = [method.spelling for method in header.method_labels]
    # a `dict` in place of a set keeps the order
    methods = dict.fromkeys([*requested, *frame["method"].unique()])
    temperatures = {*header.spec.values.temperatures, *frame["temperature"].unique().tolist()}
    tasks = dict.fromkeys([*header.columns, *frame["task"].unique()])
    return Axes(
        methods=tuple(sorted(methods, key=lambda method: method != BASELINE)),
        temperatures=tuple(sorted(temperatures)),
        tasks=tuple(tasks),
    )


@dataclass(frozen=True, slots=True)
class MethodMetrics:
    """A method at one temperature over all tasks. Its values are means over tasks."""

    speedup: Value
    decode_speedup: Value
    mat: Value

    pooled: CellMetrics
    """All tasks as one cell, without intervals. MAT is that of its `Cost`, if both are known."""

    partial: Missing | None = None
    """The reason if missing tasks keep the means from being compared with others, else None."""


def measure_overall(
    cells: Mapping[CellKey, CellMetrics], axes: Axes
) -> dict[tuple[str, float], MethodMetrics]:
    """Compute the metrics over all tasks, by method and temperature."""
    overall: dict[tuple[str, float], MethodMetrics] = {}
    for temperature in axes.temperatures:
        overall |= _overall_at(cells, axes, temperature)
    return overall


def _overall_at(
    cells: Mapping[CellKey, CellMetrics], axes: Axes, temperature: float
) -> dict[tuple[str, float], MethodMetrics]:
    """Compute each method's metrics over all tasks at a temperature, by method and temperature.

    `cells` has the numbers of each method on each task, and on all tasks as one (POOLED). A method
    that lacks some tasks, but not all, gets the reason why its means cannot be compared with others
    (`partial`).
    """
    cells_by_method = {  # a cell per task, in the order of tasks
        method: [cells[CellKey(method, temperature, task)] for task in axes.tasks]
        for method in axes.methods
    }

    def means_by_method(pick: Callable[[CellMetrics], Value]) -> dict[str, Value]:
        """Compute the mean over tasks of the number that `pick` takes from a cell, by method."""
        values_by_method = {
            method: [pick(cell) for cell in task_cells]
            for method, task_cells in cells_by_method.items()
        }
        # over the tasks that any method except vanilla has; `Missing` if a method lacks one of them
        return means_of_methods(values_by_method)

    speedups = means_by_method(lambda cell: cell.speedup)
    decode_speedups = means_by_method(lambda cell: cell.decode_speedup)
    mats = means_by_method(lambda cell: cell.mat)
    cells_by_task = zip(*cells_by_method.values(), strict=True)  # per task, a cell of each method
    # Tasks with a completion of any method, vanilla included. `num_done` leaves out failed ones.
    num_tasks = sum(any(cell.num_done for cell in method_cells) for method_cells in cells_by_task)
    overall = {}
    for method, task_cells in cells_by_method.items():
        num_measured = sum(cell.num_done > 0 for cell in task_cells)  # tasks with completions
        overall[method, temperature] = MethodMetrics(
            speedup=speedups[method],
            decode_speedup=decode_speedups[method],
            mat=mats[method],
            pooled=cells[CellKey(method, temperature, POOLED)],
            partial=reason_if_partial(num_measured, num_tasks),
        )
    return overall
