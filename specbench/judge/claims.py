"""Test which differences between two runs can be claimed, and correct for the number of tests.

The means over tasks are one family of tests, since sentences make claims about them. The single
tasks are a second family, since only colours make claims about them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.metrics import POOLED
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.stats.significance import differs, holm
from specbench.judge.pairs import CellPair, Metric, Pair

MEAN = "mean"
"""The task of a cell with the means over tasks."""


class Claim(NamedTuple):
    """The claim that a metric of a cell differs between two runs."""

    cell: CellKey
    metric: Metric


def with_p_values(cells: Mapping[CellKey, CellPair], *, has_times: bool) -> dict[CellKey, CellPair]:
    """The same cells, in which each tested pair has the p-value of "the ratio is 1".

    P-values are corrected (Holm) within the means over tasks and within the single tasks.

    Args:
        cells: the numbers of both runs by method, temperature and task. The task may be the mean
            over tasks or all tasks pooled.
        has_times: True to test tokens/s and speedup too; False to test only MAT.
    """
    mean_keys = [key for key in cells if key.task == MEAN]
    task_keys = [key for key in cells if key.task not in (MEAN, POOLED)]
    tested_cells = {**cells}  # cells that are not tested stay as they are
    for family in (mean_keys, task_keys):
        p_values = {
            Claim(key, metric): _p_value(cells[key].pair(metric))
            for key in family
            for metric in _tested_metrics(key.method, has_times=has_times)
        }
        for claim, p_value in holm(p_values).items():  # corrected
            cell_pair = tested_cells[claim.cell]
            # a field of `CellPair` has the name of its metric
            fields: Any = {claim.metric: replace(cell_pair.pair(claim.metric), p_value=p_value)}
            tested_cells[claim.cell] = replace(cell_pair, **fields)
    return tested_cells


def _p_value(pair: Pair) -> float | None:
    """The p-value of "the ratio is 1", not corrected; None if it cannot be tested."""
    # the variance that passes or runs add to the log of the ratio; None if unknown
    machine = pair.ratio.machine if isinstance(pair.ratio, Estimate) else None
    return differs(pair.subject, pair.reference, machine)


def _tested_metrics(method: str, *, has_times: bool) -> tuple[Metric, ...]:
    """The metrics of a method that are tested. Vanilla's speedup and MAT are 1 in every run."""
    if method == BASELINE:
        return ("tokens_per_s",) if has_times else ()
    return ("mat", "tokens_per_s", "speedup") if has_times else ("mat",)
