"""Define a check, which answers one question about a run, and the result of all checks of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specbench.analysis.cells import NOT_RUN, CellKey
from specbench.analysis.stats.estimates import Value
from specbench.report.texts import Note

Status = Literal["passed", "failed", "skipped"]
NUMBERS = ("MAT", "speed")
"""The names of checks that compare a number, and so need enough samples."""
TOO_FEW = "too few samples to judge"
"""The first words of a check that was skipped for lack of samples."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question about a run, with its answer."""

    name: str
    """The question. For a cell it is samples, output, audit, steps, MAT or speed. For the whole run
    it is another one, such as hashes.
    """
    status: Status
    text: str
    """The answer in words."""
    cell: CellKey | None = None
    value: Value = NOT_RUN
    """The share by which a checked number became worse. A negative share is an improvement, or the
    rise of a MAT, which may be checked too.
    """
    allowed: float | None = None
    """The largest allowed change of a checked number."""
    before: Value = NOT_RUN
    """The number in the baseline run."""
    now: Value = NOT_RUN
    """The number in this run."""
    needs: int | None = None
    """The number of samples per task that a skipped check of a number needs."""
    method: str = ""
    """The cell's method in words, with temperature and load if there are several."""
    task: str = ""
    """The cell's task in words."""


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """All checks of a run, with their result."""

    run: str
    """The name of the run."""
    checks: tuple[Check, ...]
    summary: str
    """The result in a sentence or two."""
    notes: tuple[Note, ...] = ()
    """Notes below the summary."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Further values, for the JSON document only."""
    is_doubtful: bool = False
    """True if something about the run is doubtful, even if it passes."""
    is_judged: bool = True
    """True if everything that was requested could be judged; otherwise the run does not pass."""

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def is_passed(self) -> bool:
        return self.is_judged and not self.failures

    @property
    def exit_code(self) -> int:
        if self.failures:
            return 1
        return 0 if self.is_judged else 3
