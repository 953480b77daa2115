"""Columns of tables over all tasks, and tables made of such columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.report import formats
from specbench.report.results import Block, MethodResults, Report
from specbench.report.table import Cell, Column, Table, Tone
from specbench.report.task_tables import groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Column):
    """A column over all tasks, with functions that make its cells."""

    text: Callable[[MethodResults], str]
    """Makes a method's text in the column."""
    tone: Callable[[MethodResults], Tone] = lambda method: ""
    """The judgement that gives a method's text its colour."""


def with_text(fields: Sequence[Field], block: Block) -> tuple[Field, ...]:
    """The fields that have a text for at least one method."""
    empty = ("", formats.NONE)
    return tuple(
        field
        for field in fields
        if any(field.text(method) not in empty for method in block.methods)
    )


def make_table(title: str, report: Report, block: Block, fields: Sequence[Field]) -> Table:
    """The table with a column per field."""

    def cells(method: MethodResults) -> list[Cell]:
        return [Cell(field.text(method), field.tone(method)) for field in fields]

    return Table(title, tuple(fields), groups(report, block, cells))
