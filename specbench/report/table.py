"""A table of texts with labelled groups of rows, which all formats of a report draw.

The formats add markup, colours and widths.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeVar

from specbench.analysis.stats.estimates import Interval

METHOD = "Method"
"""The heading of the column with labels."""

Tone = Literal["", "good", "bad", "unsure", "missing"]
"""The claim about a speedup: faster (good), slower (bad), or no significant difference (unsure). It
is "" if nothing is claimed, and "missing" if there is no number.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """One text of a table."""

    text: str
    """The number as text."""
    tone: Tone = ""
    """The claim about the number."""
    is_best: bool = False
    """True for the best number in a column."""
    interval: Interval | None = None
    """The interval of the number, which only some formats show."""
    reason: str | None = None
    """The reason why there is no number, or None if there is one."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    heading: str
    """The heading, which may have line breaks."""
    task: str = ""
    """A title above the headings of adjacent columns, such as that of a task."""
    rank: int = 0
    """If there is little room, columns with the highest rank are dropped first. Rank 0 always
    stays.
    """
    short: str = ""
    """The heading if there is little room, or "" to use `heading`."""

    @property
    def title(self) -> str:
        """The task and the heading on one line."""
        return f"{self.task} {self.heading}".replace("\n", " ").strip()


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one method."""

    method: str
    """The spelling in records, or "" if the row is not for a method."""
    label: str
    """The name in the first column."""
    cells: tuple[Cell, ...]
    """The cells, with one per column."""
    has_failed: bool = False
    """True if the method has failed samples."""

    @property
    def reason(self) -> str | None:
        """The reason that all cells share, or None if they share none."""
        reasons = {cell.reason for cell in self.cells}
        return reasons.pop() if len(reasons) == 1 else None


@dataclass(frozen=True, slots=True)
class Group:
    """Rows below a label."""

    label: str
    """The name of the run, or "" if there is only one."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and groups of rows below a title."""

    title: str
    """The title, which may be ""."""
    columns: tuple[Column, ...]
    """All columns except the one with labels."""
    groups: tuple[Group, ...]
    """The rows, with a group for each run or task."""
    heading: str = METHOD
    """The heading of the column with labels."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all groups."""
        return tuple(row for group in self.groups for row in group.rows)

    def take(self, indices: Sequence[int]) -> Self:
        """Return the table with only the columns at these indices, in this order."""
        groups = []
        for group in self.groups:
            rows = [replace(row, cells=tuple(row.cells[i] for i in indices)) for row in group.rows]
            groups.append(replace(group, rows=tuple(rows)))
        columns = tuple(self.columns[i] for i in indices)
        return replace(self, columns=columns, groups=tuple(groups))

    def by_task(self, cells: Sequence[T]) -> list[tuple[str, list[T]]]:
        """Group the cells of a row, or the columns, by task. A cell without a task stands alone.

        Returns pairs of the task's title, which is "" without a task, and the cells. `cells` has an
        element per column.
        """
        gathered: list[tuple[str, list[T]]] = []
        for column, cell in zip(self.columns, cells, strict=True):
            is_same_task = bool(column.task and gathered and gathered[-1][0] == column.task)
            if is_same_task:
                gathered[-1][1].append(cell)
            else:
                gathered.append((column.task, [cell]))
        return gathered


def group_table(headings: Iterable[str], rows: Iterable[Row], heading: str = METHOD) -> Table:
    """Make a table with one group of rows. `heading` is above the labels of the rows."""
    return Table(
        title="",
        columns=tuple(map(Column, headings)),
        groups=(Group(label="", rows=tuple(rows)),),
        heading=heading,
    )
