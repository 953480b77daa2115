"""Checks of a run, each of one question, and all of them with their result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specbench.analysis.cells import NOT_RUN, CellKey
from specbench.analysis.stats.estimates import Value
from specbench.report.texts import Note

Status = Literal["passed", "failed", "skipped"]
NUMBERS = ("MAT", "speed")
"""The names of checks of a number, which takes samples to judge."""
TOO_FEW = "too few samples to judge"
"""The start of the text of a number that was skipped for lack of samples."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question about a run, with its answer.

    `name` is the question: samples, output, audit, MAT or speed of one cell; or, without a cell,
    one about the whole run, such as hashes. `value` is the relative change for the worse (negative:
    better), from `before` in the baseline run to `now`, and `limit` the largest one allowed, where
    a number is checked. `needs` is the number of samples a task that would judge a number that
    was skipped. `method` and `task` say in words what the cell is.
    """

    name: str
    status: Status
    text: str
    cell: CellKey | None = None
    value: Value = NOT_RUN
    limit: float | None = None
    before: Value = NOT_RUN
    now: Value = NOT_RUN
    needs: int | None = None
    method: str = ""
    task: str = ""


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """All checks of a run. `summary` is their result in a sentence or two.

    `notes` stand below it, and `about` is in the JSON document only. The run may pass and
    still be `is_doubtful`. Unless `is_judged`, something that was asked for could not be
    judged, and the run does not pass.
    """

    run: str
    checks: tuple[Check, ...]
    summary: str
    notes: tuple[Note, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    is_doubtful: bool = False
    is_judged: bool = True

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def is_passed(self) -> bool:
        return self.is_judged and not self.failures

    @property
    def exit_code(self) -> int:
        return 1 if self.failures else 0 if self.is_judged else 3
