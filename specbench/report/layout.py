"""A table in a given number of characters, as parts that rich prints.

The columns of the highest rank are left out first. Columns that still do not fit
continue in further tables. A label is on one line, unless it takes more than half the width.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.report.console import Prose
from specbench.report.table import Cell, Column, Row, Table, Tone

_STYLES: Mapping[Tone, str] = {"good": "green", "bad": "red", "unsure": "yellow", "missing": "dim"}
_DIVIDER = 1
"""Characters that rich puts between two columns: a part of the gap."""
_GAP = 2
_LEAST_LABEL, _MOST_LABEL = 12, 34
_PARTS = re.compile(r"\([^()]*\)|\S+")
"""The parts of a label, which is broken between them: words, and all that parentheses hold."""


def fits(table: Table, width: int) -> bool:
    """True if all columns have room side by side in this many characters."""
    return _Layout(table, width).fits


def first_in_full(tables: Sequence[Table], width: int) -> Table:
    """The first table that has room, else what fits of the last."""
    return next((table for table in tables if fits(table, width)), narrowed(tables[-1], width))


def narrowed(table: Table, width: int) -> Table:
    """The table without the columns of the highest ranks, as far as this width has no room."""
    for highest in sorted({column.rank for column in table.columns if column.rank}, reverse=True):
        if fits(table, width):
            break
        table = table.take([i for i, one in enumerate(table.columns) if one.rank != highest])
    return table


def draw(table: Table, width: int) -> Iterable[RenderableType]:
    """The table in this many characters, in several parts if it must be, each with a blank line."""
    layout = _Layout(narrowed(table, width), width)
    for units in layout.split():
        yield layout.draw(units)
        yield Text()


@dataclass(frozen=True, slots=True)
class _Unit:
    """Columns that stay together: those of one task, or a single one. Widths are in characters."""

    index: int
    heading: Text
    widths: tuple[int, ...]
    width: int

    def cell(self, cells: Sequence[Cell]) -> Text:
        """The texts side by side, each in its width."""
        text = Text()
        for cell, width in zip(cells, self.widths, strict=True):
            style = f"{'bold ' if cell.is_best else ''}{_STYLES.get(cell.tone, '')}".strip()
            text.append(" " if text else "")
            text.append(cell.text.rjust(width), style=style)
        return text


class _Layout:
    """A table in a given width: which columns stand side by side, and how wide they are."""

    def __init__(self, table: Table, width: int) -> None:
        self.table, self._width = table, width
        self._cells = [[cells for _, cells in table.by_task(row.cells)] for row in table.rows]
        self._units = [
            _unit(i, task, columns, rows=[cells[i] for cells in self._cells])
            for i, (task, columns) in enumerate(table.by_task(table.columns))
        ]
        longest = max(cell_len(text) for text in (table.heading, *map(_label, table.rows)))
        least = min(longest, max(_LEAST_LABEL, min(_MOST_LABEL, width // 2)))
        room = width - sum(_GAP + unit.width for unit in self._units)
        self._label_width = min(longest, max(least, min(_MOST_LABEL, room)))

    @property
    def fits(self) -> bool:
        """True if all columns have room side by side, with a clear gap between them."""
        return self._total(_GAP) <= self._width

    def _total(self, gap: int) -> int:
        return self._label_width + sum(gap + unit.width for unit in self._units)

    @property
    def _gap(self) -> int:
        return next((gap for gap in (3, 2, 1) if self._total(gap) <= self._width), _GAP)

    def split(self) -> Iterable[Sequence[_Unit]]:
        """All columns at once if they fit, else as many at a time as do."""
        room = self._width - self._label_width
        pending: list[_Unit] = []
        for unit in self._units:
            if pending and sum(self._gap + each.width for each in (*pending, unit)) > room:
                yield pending
                pending = []
            pending.append(unit)
        yield pending

    def draw(self, units: Sequence[_Unit]) -> RenderableType:
        """The header once, then each group below its label, which may be wide.

        That takes several tables. They have equal widths, so that they look like one.
        """
        is_labelled = any(group.label for group in self.table.groups)
        parts: list[RenderableType] = [self._lines(units, [], is_header=True)] * is_labelled
        rest = list(zip(self.table.rows, self._cells, strict=True))
        for group in self.table.groups:
            own, rest = rest[: len(group.rows)], rest[len(group.rows) :]
            if group.label:
                parts.append(Prose(group.label, "italic"))
            parts.append(self._lines(units, own, is_header=not is_labelled))
        return Group(*parts)

    def _lines(
        self,
        units: Sequence[_Unit],
        rows: Sequence[tuple[Row, list[list[Cell]]]],
        *,
        is_header: bool,
    ) -> RichTable:
        bare: Any = {"padding": (0, 0), "pad_edge": False, "show_edge": False}
        shown = RichTable(box=box.SIMPLE_HEAD, show_header=is_header, **bare)
        shown.add_column(
            self.table.heading, width=self._label_width, overflow="fold", vertical="bottom"
        )
        for unit in units:
            shown.add_column(
                unit.heading,
                justify="right",
                width=self._gap + unit.width - _DIVIDER,
                overflow="fold",
                no_wrap=True,
                vertical="bottom",
            )
        for row, cells in rows:
            lines = "\n".join(_fold_label(_label(row), self._label_width))
            label = Text(lines, style="bold red" if row.has_failed else "")
            shown.add_row(label, *(unit.cell(cells[unit.index]) for unit in units))
        return shown


def _unit(
    index: int, task: str, columns: Sequence[Column], *, rows: Sequence[Sequence[Cell]]
) -> _Unit:
    headings = [(column.short or column.heading).splitlines() or [""] for column in columns]
    widths = tuple(
        max(map(cell_len, [*heading, *(cells[i].text for cells in rows)]))
        for i, heading in enumerate(headings)
    )
    width = max(sum(widths) + len(widths) - 1, *map(cell_len, _wrap(task, 1)), 0)
    lines = headings[0]
    if task:
        below = " ".join(h.rjust(w) for (h, *_), w in zip(headings, widths, strict=True))
        lines = [*_wrap(task, width), *([below] if below.strip() else [])]
    return _Unit(index, Text("\n".join(lines), justify="right"), widths=widths, width=width)


def _wrap(task: str, width: int) -> list[str]:
    """The title of a task in lines; "-like" may stand on a line of its own."""
    words = task.replace("-like", " -like")
    lines = wrap(words, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(" -like", "-like") for line in lines]


def _fold_label(label: str, width: int) -> list[str]:
    """The label in lines; parentheses stay whole where they fit."""
    lines = [""]
    for part in _PARTS.findall(label):
        longer = f"{lines[-1]} {part}".strip()
        lines[-1:] = [longer] if cell_len(longer) <= width else [lines[-1], part]
    return [line for line in lines if line]


def _label(row: Row) -> str:
    return f"{row.label} ({row.reason})" if row.reason else row.label
