"""Passes and runs as units of repetition: what an interval covers, and numbers unit by unit.

A unit is a pass over the prompts, or, in a pool of runs, a run. Each asks the same requests at
another time, so that the spread between units is the machine's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from specbench.analysis.stats.bootstrap import Estimate, FloatArray, Value
from specbench.analysis.stats.effects import of_mean

if TYPE_CHECKING:
    from specbench.analysis.records import IntArray

PROMPTS_ONLY = "prompts only; machine variance not estimated"
"""The label of every interval of one pass."""


class Scope(NamedTuple):
    """Sources of variance in intervals of times besides prompts: passes of one run, or runs."""

    kind: Literal["passes", "runs"] = "passes"
    number: int = 1

    @property
    def is_estimated(self) -> bool:
        """True if the machine's variance is part of the intervals."""
        return self.number > 1

    @property
    def text(self) -> str:
        """In words: "prompts and 3 passes"."""
        return f"prompts and {self.number} {self.kind}" if self.is_estimated else PROMPTS_ONLY


ONE_PASS = Scope()


def unit_sd(value: Value) -> float | None:
    """The standard deviation of a number's logarithm between the units of its run."""
    if not isinstance(value, Estimate) or len(value.units) != 1:
        return None
    variance, known = of_mean(value.units[0]), np.isfinite(value.units[0]).sum()
    return None if variance is None else math.sqrt(variance.value * float(known))


def log_ratios(
    units: IntArray,
    requests: IntArray,
    columns: tuple[Sequence[FloatArray], Sequence[FloatArray]],
    num_units: int,
) -> tuple[FloatArray, ...]:
    """The logarithm of prod(sums of the first columns) / prod(sums of the others) in each unit.

    `units`, `requests` and columns are [rows]; the result is one array [num_units], or nothing if
    there is one unit. NaN stands for a unit without all requests that the others have: its prompts
    would count as its noise.
    """
    if num_units < 2:
        return ()
    num_requests = 1 + int(requests.max(initial=0))
    seen = np.unique(units * num_requests + requests)
    counts = np.bincount(seen // num_requests, minlength=num_units)
    with np.errstate(divide="ignore", invalid="ignore"):
        top, bottom = (
            sum(np.log(np.bincount(units, weights=column, minlength=num_units)) for column in side)
            for side in columns
        )
        logs = np.where(counts == counts.max(initial=1), np.subtract(top, bottom), np.nan)
    return (logs,)
