"""A check of the gate: one quantity of one cell, with its result."""

from dataclasses import dataclass
from typing import Literal

from specbench.analysis.cells import NOT_RUN, CellKey
from specbench.analysis.stats.bootstrap import Value

Kind = Literal["samples", "output", "audit", "MAT", "speed"]
Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Change:
    """The relative change for the worse (negative: better), with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Check:
    """One check of one cell.

    `before` and `now` are the values of the baseline run and of this run (mean accepted tokens or
    tokens a second), if the check is of a number.
    """

    cell: CellKey
    kind: Kind
    status: Status
    text: str
    before: Value = NOT_RUN
    now: Value = NOT_RUN
    change: Change | None = None
