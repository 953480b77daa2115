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
    """One text. `reason` says why there is no number; only some writers show `interval`."""

    text: str
    tone: Tone = ""
    is_best: bool = False
    interval: Interval | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, below the title of the task that it shares with its neighbours, if any.

    A heading may be broken at its line breaks. Where room is short, the highest `rank` goes
    first; rank 0 stays. `short` is the heading for a narrow place.
    """

    heading: str
    task: str = ""
    rank: int = 0
    short: str = ""

    @property
    def title(self) -> str:
        """Task and heading on one line."""
        return f"{self.task} {self.heading}".replace("\n", " ").strip()


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one method. `has_failed` marks a method with failed samples."""

    method: str
    label: str
    cells: tuple[Cell, ...]
    has_failed: bool = False

    @property
    def reason(self) -> str | None:
        """The reason that all cells share, if there is one."""
        reasons = {cell.reason for cell in self.cells}
        return reasons.pop() if len(reasons) == 1 else None


@dataclass(frozen=True, slots=True)
class Group:
    """Rows below a label; the label of a single run is empty."""

    label: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and groups of rows below a title, which may be empty. `heading` is of the labels."""

    title: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    heading: str = METHOD

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all groups."""
        return tuple(row for group in self.groups for row in group.rows)

    def take(self, places: Sequence[int]) -> Self:
        """The table with the columns at these places, in this order."""

        def taken(row: Row) -> Row:
            return replace(row, cells=tuple(row.cells[i] for i in places))

        groups = tuple(replace(one, rows=tuple(map(taken, one.rows))) for one in self.groups)
        return replace(self, columns=tuple(self.columns[i] for i in places), groups=groups)

    def by_task(self, items: Sequence[T]) -> list[tuple[str, list[T]]]:
        """Cells of a row, or columns, gathered below their tasks; without a task each is alone."""
        gathered: list[tuple[str, list[T]]] = []
        for column, item in zip(self.columns, items, strict=True):
            if column.task and gathered and gathered[-1][0] == column.task:
                gathered[-1][1].append(item)
            else:
                gathered.append((column.task, [item]))
        return gathered
