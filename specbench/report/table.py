"""A table of text with labelled groups of rows: the one form that every writer draws.

Writers add markup, colour and width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeVar

from specbench.analysis.stats.estimates import Interval

METHOD = "Method"
"""The heading of the column of labels."""

Tone = Literal["", "good", "bad", "unsure", "missing"]
"""The claim that an interval supports: faster, slower, or no significant difference."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """One text of a table."""

    text: str
    """The number as text."""
    tone: Tone = ""
    """The claim of its interval."""
    is_best: bool = False
    """True for the best of a column."""
    interval: Interval | None = None
    """Its interval, which only some writers show."""
    reason: str | None = None
    """The reason why there is no number."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    heading: str
    """The heading, which may be broken at its line breaks."""
    task: str = ""
    """The title of the task above the heading, which neighbouring columns share."""
    rank: int = 0
    """Columns of the highest rank are dropped first if there is little room; rank 0 stays."""
    short: str = ""
    """The heading for a narrow place."""

    @property
    def title(self) -> str:
        """Task and heading on one line."""
        return f"{self.task} {self.heading}".replace("\n", " ").strip()


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one method."""

    method: str
    """Its key in records; empty in a table of no methods."""
    label: str
    """Its name in the first column."""
    cells: tuple[Cell, ...]
    """One per column."""
    has_failed: bool = False
    """True for a method with failed samples."""

    @property
    def reason(self) -> str | None:
        """The reason that all cells share, if there is one."""
        reasons = {cell.reason for cell in self.cells}
        return reasons.pop() if len(reasons) == 1 else None


@dataclass(frozen=True, slots=True)
class Group:
    """Rows below a label."""

    label: str
    """The run's name; empty for a single run."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and groups of rows below a title."""

    title: str
    """The title; may be empty."""
    columns: tuple[Column, ...]
    """All columns but the column of labels."""
    groups: tuple[Group, ...]
    """The rows, gathered by run."""
    heading: str = METHOD
    """The heading of the column of labels."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all groups."""
        return tuple(row for group in self.groups for row in group.rows)

    def take(self, indices: Sequence[int]) -> Self:
        """The table with the columns of these indices, in this order."""
        groups = []
        for group in self.groups:
            rows = [replace(row, cells=tuple(row.cells[i] for i in indices)) for row in group.rows]
            groups.append(replace(group, rows=tuple(rows)))
        columns = tuple(self.columns[i] for i in indices)
        return replace(self, columns=columns, groups=tuple(groups))

    def by_task(self, cells: Sequence[T]) -> list[tuple[str, list[T]]]:
        """Cells of a row, or columns, gathered below their tasks; one without a task is alone.

        Pairs of a task's title, empty without a task, and the cells. `cells` has one per column.
        """
        gathered: list[tuple[str, list[T]]] = []
        for column, cell in zip(self.columns, cells, strict=True):
            is_same_task = bool(column.task and gathered and gathered[-1][0] == column.task)
            if is_same_task:
                gathered[-1][1].append(cell)
            else:
                gathered.append((column.task, [cell]))
        return gathered
