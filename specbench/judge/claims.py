"""The tests that support claimed differences between two runs, corrected for their number.

The means over tasks are one family of tests: sentences make claims about them. The single tasks are
a second family: they are only coloured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.metrics import POOLED
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.stats.significance import differs, holm
from specbench.judge.pairs import CellPair, Metric

MEAN = "mean"
"""The task of a cell with the means over tasks."""


class Claim(NamedTuple):
    """The claim that a metric of a cell differs between two runs."""

    cell: CellKey
    metric: Metric


def with_p_values(cells: Mapping[CellKey, CellPair], *, has_times: bool) -> dict[CellKey, CellPair]:
    """The cells, with the p-value of "the ratio is 1" in each tested pair.

    P-values are corrected (Holm) within the means over tasks and within the single tasks.

    Args:
        cells: for each metric (tokens/s, speedup, MAT) of a cell, the pair of its numbers in two
            runs, with their ratio. A cell is of a task, of their mean, or of all tasks pooled.
        has_times: tokens/s and speedup are tested too; else only MAT is.
    """
    mean_keys = [key for key in cells if key.task == MEAN]
    task_keys = [key for key in cells if key.task not in (MEAN, POOLED)]
    result_cells = {**cells}  # cells that are not tested stay as they are
    for family in (mean_keys, task_keys):
        # A claim is a cell and a metric; its p-value is None if it cannot be tested.
        p_values = _p_values(cells, family, has_times=has_times)
        for claim, p_value in holm(p_values).items():  # corrected
            cell = result_cells[claim.cell]  # has a field for each metric
            new_pair: Any = {claim.metric: replace(cell.pair(claim.metric), p_value=p_value)}
            result_cells[claim.cell] = replace(cell, **new_pair)
    return result_cells


def _p_values(
    cells: Mapping[CellKey, CellPair], family: Sequence[CellKey], *, has_times: bool
) -> dict[Claim, float | None]:
    """The p-values of a family of cells, not corrected."""
    p_values = {}
    for key in family:
        for metric in _tested_metrics(key.method, has_times=has_times):
            pair = cells[key].pair(metric)
            machine = pair.ratio.machine if isinstance(pair.ratio, Estimate) else None
            p_values[Claim(key, metric)] = differs(pair.subject, pair.reference, machine)
    return p_values


def _tested_metrics(method: str, *, has_times: bool) -> tuple[Metric, ...]:
    """The metrics of a method that are tested: vanilla's speedup and MAT are 1 in every run."""
    if method == BASELINE:
        return ("tokens_per_s",) if has_times else ()
    return ("mat", "tokens_per_s", "speedup") if has_times else ("mat",)
