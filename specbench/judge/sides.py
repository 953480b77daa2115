"""One side of a comparison: the measured records of a run, with its methods, tasks and passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.cells import BASELINE
from specbench.analysis.tables import TabledRun
from specbench.errors import unknown_name
from specbench.log.header import RunHeader
from specbench.log.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The measured records of one of two compared runs, with its methods, tasks and passes."""

    run: Run
    frame: DataFrame
    """Measured rows of the run's table, with the columns `RUN_AND_PASS`."""
    methods: tuple[str, ...]
    """Methods, spelled as in records. Vanilla is first, then others in the header's order."""
    temperatures: tuple[float, ...]
    tasks: Mapping[str, str]
    """The name of each task -> its title, in the header's order."""
    num_units: int
    """Number of passes of the side, or of runs if both sides are pools."""
    num_runs: int
    """Number of runs of the pool if both sides are pools, which are paired run by run; else 1."""
    num_passes: int
    """Number of passes of each run; of all runs together, if only this side is a pool."""
    has_phases: bool
    """The phases of steps were timed."""


def make_side(tabled_run: TabledRun, *, are_pools: bool) -> Side:
    """Make one side of a comparison.

    Two pools are paired run by run, and the runs pass by pass. If only one side is a pool, its
    passes are numbered as if it were one run.

    Args:
        tabled_run: a run, or a pool of several runs, with its table.
        are_pools: True if both sides are pools.
    """
    run, table = tabled_run.run, tabled_run.table
    # For each record: its repeat, the number of its run, its pass in that run, and its unit, which
    # is its run if both sides are pools, and its pass otherwise. [rows] each
    repeats = table.frame["repeat"].to_numpy()
    run_numbers = np.zeros_like(repeats)
    pass_numbers = units = repeats
    if are_pools:
        # The repeats of a pool are numbered from run to run. With `run_of_repeat` [0 0 1 1 1], the
        # repeats [0 1 2 3 4] are the passes [0 1 0 1 2].
        run_of_repeat = np.array(run.run_of_repeat)
        # the first repeat in the run of each repeat
        first_repeat = np.searchsorted(run_of_repeat, run_of_repeat)
        pass_of_repeat = np.arange(len(run_of_repeat)) - first_repeat
        run_numbers = units = run_of_repeat[repeats]
        pass_numbers = pass_of_repeat[repeats]
    frame = table.frame.assign(run=run_numbers, pass_=pass_numbers, unit=units)
    measured = frame[frame["is_measured"]]  # rows with tokens and a time
    measured_tasks = {*measured["task"]}
    # in the order of the header, whose `columns` has the names of tasks
    listed_tasks = dict.fromkeys([*run.header.columns, *measured["task"].unique()])
    return Side(
        run=run,
        frame=measured,
        methods=_ordered_methods(run.header, measured["method"].unique()),
        temperatures=tuple(sorted(measured["temperature"].unique().tolist())),
        tasks={  # name -> title
            task: run.header.task_title(task) for task in listed_tasks if task in measured_tasks
        },
        num_units=1 + int(units.max(initial=0)),
        num_runs=len({*run_numbers}),
        num_passes=len({*pass_numbers}),
        # NaN if the phases of steps, such as drafting, were not timed
        has_phases=bool(frame["draft_s"].notna().any()),
    )


def _ordered_methods(header: RunHeader, measured: Collection[str]) -> tuple[str, ...]:
    """Vanilla, then the methods of the header in its order, then others."""
    listed = [label.spelling for label in header.method_labels if label.spelling in measured]
    ordered = dict.fromkeys([*listed, *measured])
    return tuple(sorted(ordered, key=lambda method: method != BASELINE))


def require_method(side: Side, method: str) -> None:
    """Raise `UserError` if the side lacks a method."""
    if method not in side.methods:
        raise unknown_name(f"method in run {side.run.header.id}", method, side.methods)
