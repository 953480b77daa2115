"""Columns of tables over all tasks, and tables made of such columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.report import formats
from specbench.report.results import Block, MethodResults, Report
from specbench.report.table import Cell, Column, Table, Tone
from specbench.report.task_tables import groups


@dataclass(frozen=True, slots=True)
class Field:
    """One column over all tasks."""

    heading: str
    """The column's heading, which may have line breaks."""
    text: Callable[[MethodResults], str]
    """Makes a method's text in the column."""
    rank: int = 0
    """Columns with the highest rank are dropped first if there is little room; rank 0 stays."""
    task: str = ""
    """A title above the headings of neighbouring columns."""
    tone: Callable[[MethodResults], Tone] = lambda method: ""
    """The judgement that gives a method's text its colour."""
    short: str = ""
    """The heading where there is little room; empty for `heading`."""

    @property
    def column(self) -> Column:
        return Column(self.heading, self.task, rank=self.rank, short=self.short)


def with_text(fields: Sequence[Field], block: Block) -> tuple[Field, ...]:
    """The fields that have a text for at least one method."""
    empty = ("", formats.NONE)

    def has_text(field: Field) -> bool:
        return any(field.text(method) not in empty for method in block.methods)

    return tuple(filter(has_text, fields))


def make_table(title: str, report: Report, block: Block, fields: Sequence[Field]) -> Table:
    """The table with a column per field."""
    columns = tuple(field.column for field in fields)

    def cells(method: MethodResults) -> list[Cell]:
        return [Cell(field.text(method), field.tone(method)) for field in fields]

    return Table(title, columns, groups(report, block, cells))
