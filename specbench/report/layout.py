"""A table in a given number of characters, as parts that rich prints.

The columns of the highest rank are left out first. Columns that still do not fit continue in
further tables. A label is on one line, unless it takes more than half the width.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from specbench.report.console import Prose
from specbench.report.table import Cell, Column, Row, Table, Tone

_STYLES: Mapping[Tone, str] = {"good": "green", "bad": "red", "unsure": "yellow", "missing": "dim"}
_GAP = 2
_LEAST_LABEL, _MOST_LABEL = 12, 34
_PARTS = re.compile(r"\([^()]*\)|\S+")
"""The parts of a label, which is broken between them: words, and all that parentheses hold."""


def first_in_full(tables: Sequence[Table], width: int) -> Table:
    """The first table that has room, else what fits of the last."""
    found = (table for table in tables if _Layout(table, width).fits)
    return next(found, narrowed(tables[-1], width))


def narrowed(table: Table, width: int) -> Table:
    """The table without the columns of the highest ranks, as far as this width has no room."""
    for highest in sorted({column.rank for column in table.columns if column.rank}, reverse=True):
        if _Layout(table, width).fits:
            break
        table = table.take([i for i, one in enumerate(table.columns) if one.rank != highest])
    return table


def draw(table: Table, width: int) -> Iterable[RenderableType]:
    """The table in this many characters, in several parts if it must be, each with a blank line."""
    layout = _Layout(narrowed(table, width), width)
    for units in layout.split():
        yield Group(*layout.lines(units))
        yield Text()


@dataclass(frozen=True, slots=True)
class _Unit:
    """Columns that stay together: those of one task, or a single one. All texts are aligned."""

    width: int
    heading: Sequence[Text]
    rows: Sequence[Text]

    def heading_line(self, place: int) -> Text:
        """The heading's line at this place from below; blank above its first."""
        return self.heading[-place] if place <= len(self.heading) else Text(" " * self.width)


class _Layout:
    """A table in a given width: which columns stand side by side, and how wide they are."""

    def __init__(self, table: Table, width: int) -> None:
        self._table, self._width = table, width
        rows = [table.by_task(row.cells) for row in table.rows]
        self._units = [
            _unit(task, columns, [row[i][1] for row in rows])
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

    def lines(self, units: Sequence[_Unit]) -> Iterable[RenderableType]:
        """The header, then each group below its label, which may be wide."""
        height = max((len(unit.heading) for unit in units), default=1)
        for i in range(height, 0, -1):
            label = self._table.heading if i == 1 else ""
            yield self._line(Text(label, "bold"), [unit.heading_line(i) for unit in units])
        yield Text("─" * (self._label_width + sum(self._gap + unit.width for unit in units)))
        numbers = count()
        for group in self._table.groups:
            if group.label:
                yield Prose(group.label, "italic")
            for row in group.rows:
                style, number = "bold red" if row.has_failed else "", next(numbers)
                *above, last = _fold_label(_label(row), self._label_width)
                yield from (Text(line, style) for line in above)
                yield self._line(Text(last, style), [unit.rows[number] for unit in units])

    def _line(self, label: Text, texts: Iterable[Text]) -> Text:
        """A label and the texts right of it."""
        line = Text(no_wrap=True, overflow="ignore").append_text(label)
        line.pad_right(self._label_width - label.cell_len)
        for text in texts:
            line.append(" " * self._gap).append_text(text)
        return line


def _unit(task: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> _Unit:
    headings = [(column.short or column.heading).splitlines() or [""] for column in columns]
    widths = [
        max(map(cell_len, [*heading, *(cells[i].text for cells in rows)]))
        for i, heading in enumerate(headings)
    ]
    width = max(sum(widths) + len(widths) - 1, *map(cell_len, _wrap(task, 1)), 0)
    lines = headings[0]
    if task:
        below = " ".join(h.rjust(w) for (h, *_), w in zip(headings, widths, strict=True))
        lines = [*_wrap(task, width), *([below] if below.strip() else [])]
    made = [Text(line, "bold") for line in lines], [_side_by_side(row, widths) for row in rows]
    for text in chain(*made):
        text.pad_left(max(0, width - text.cell_len))
    return _Unit(width, *made)


def _side_by_side(cells: Sequence[Cell], widths: Sequence[int]) -> Text:
    """The texts of cells, each in its width."""
    texts = []
    for cell, width in zip(cells, widths, strict=True):
        style = f"{'bold ' if cell.is_best else ''}{_STYLES.get(cell.tone, '')}".strip()
        texts.append(Text(cell.text.rjust(width), style))
    return Text(" ").join(texts)


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
    return [line for each in lines for line in wrap(each, width, break_on_hyphens=False)] or [""]


def _label(row: Row) -> str:
    return f"{row.label} ({row.reason})" if row.reason else row.label
