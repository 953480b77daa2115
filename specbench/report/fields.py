"""Make the tables whose columns are numbers over all tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.report import formats
from specbench.report.results import Block, MethodResults, Report
from specbench.report.table import Cell, Column, Table, Tone
from specbench.report.task_tables import groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Column):
    """A column for a number over all tasks, with the functions that make its cells."""

    text: Callable[[MethodResults], str]
    """Returns a method's text in the column."""
    tone: Callable[[MethodResults], Tone] = lambda method: ""
    """Returns the claim that gives a method's text its colour."""


def with_text(fields: Sequence[Field], block: Block) -> tuple[Field, ...]:
    """Return the fields that have a text for at least one method."""
    empty = ("", formats.NONE)
    return tuple(
        field
        for field in fields
        if any(field.text(method) not in empty for method in block.methods)
    )


def make_table(title: str, report: Report, block: Block, fields: Sequence[Field]) -> Table:
    """Return the table with a column for each field."""

    def cells(method: MethodResults) -> list[Cell]:
        return [Cell(field.text(method), field.tone(method)) for field in fields]

    return Table(title, tuple(fields), groups(report, block, cells))
