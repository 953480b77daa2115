"""Passes and runs as units of repetition: what an interval covers.

A unit is a pass over the prompts, or, in a pool of runs, a run. Each asks the same requests at
another time, so that the spread between units is the machine's.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from specbench.analysis.stats.bootstrap import Estimate, Value
from specbench.analysis.stats.effects import of_mean

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
