"""The grid of methods by tasks on a terminal, cut into as many tables as the width asks for.

Knows cells, their parts (numbers side by side in one cell), labelled sections of rows and character
widths. Knows nothing of what stands above and below the grid.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.analysis.stats import Estimate, Value
from specbench.report import formats
from specbench.report.table import Cell, Column, Row

DIVIDER = 1
"""Characters that rich puts between two columns: they are a part of the gap."""
METHOD = "Method"
CLEAR_GAP = 2
LEAST_LABEL, MOST_LABEL = 12, 26


@dataclass(frozen=True, slots=True)
class Part:
    """One number of a cell: its heading, its text and its look."""

    heading: str
    text: Callable[[Cell], str]
    style: Callable[[Cell], str]


def sureness(speedup: Value) -> str:
    """Green and red are claims that the interval bears out; yellow is not told apart from 1."""
    if not isinstance(speedup, Estimate):
        return "dim"
    interval = speedup.interval
    if interval is None or interval.low == interval.high:
        return ""
    if 1.0 in interval:
        return "yellow"
    return "green" if interval.low > 1.0 else "red"


def _speedup_style(cell: Cell) -> str:
    bold = "bold " if cell.is_best_speedup else ""
    return f"{bold}{sureness(cell.speedup)}".strip()


def _mat_style(cell: Cell) -> str:
    return "bold" if cell.is_best_mat else ""


SPEEDUP = Part("speed", lambda cell: formats.speedup(cell.speedup), _speedup_style)
PLUS_MINUS = Part("speed", lambda cell: formats.plus_minus(cell.speedup), _speedup_style)
MAT = Part("MAT", lambda cell: formats.mat(cell.mat), _mat_style)
SPAN = Part("95 %", lambda cell: formats.span(cell.speedup), lambda cell: sureness(cell.speedup))


@dataclass(frozen=True, slots=True)
class Section:
    """Rows below a label of their own, or below none."""

    label: str
    rows: Sequence[Row]


def sectioned(
    sections: Sequence[Section],
    columns: Sequence[tuple[Text, int]],
    texts: Callable[[Row], Sequence[Text]],
) -> RenderableType:
    """The header once, then each section below its label, which may be wider than any column:
    equal widths make one table of the several that this takes. `columns` are headings and widths.
    """
    is_labelled = any(section.label for section in sections)
    parts: list[RenderableType] = [_lines(columns, [], is_header=True)] if is_labelled else []
    for section in sections:
        if section.label:
            parts.append(Text(section.label, style="italic"))
        lines = [texts(row) for row in section.rows]
        parts.append(_lines(columns, lines, is_header=not is_labelled))
    return Group(*parts)


def _lines(
    columns: Sequence[tuple[Text, int]], lines: Sequence[Sequence[Text]], is_header: bool
) -> RichTable:
    (first, first_width), *others = columns
    table = RichTable(
        box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False, show_header=is_header
    )
    table.add_column(first, width=first_width, overflow="fold", vertical="bottom")
    for heading, width in others:
        table.add_column(heading, justify="right", width=width, no_wrap=True, vertical="bottom")
    for line in lines:
        table.add_row(*line)
    return table


@dataclass(frozen=True, slots=True)
class Grid:
    """Sections and columns to draw with these parts in every cell, in this many characters."""

    sections: Sequence[Section]
    columns: Sequence[Column]
    parts: Sequence[Part]
    width: int

    @property
    def fits(self) -> bool:
        """Whether one table has room for all columns, with a clear gap between them."""
        return self._total(CLEAR_GAP) <= self.width

    def tables(self) -> Iterable[RenderableType]:
        """One table, or several with a part of the columns each."""
        gap = next((gap for gap in (3, 2, 1) if self._total(gap) <= self.width), CLEAR_GAP)
        widths = [gap + width for width in self._column_widths()]
        room = self.width - self._label_width()
        pending: list[int] = []
        for i in range(len(self.columns)):
            if pending and sum(widths[j] for j in (*pending, i)) > room:
                yield self._table(pending, widths)
                pending = []
            pending.append(i)
        yield self._table(pending, widths)

    def _table(self, which: Sequence[int], widths: Sequence[int]) -> RenderableType:
        part_widths = self._part_widths()
        columns = [(self._header(self.columns[i], part_widths), widths[i] - DIVIDER) for i in which]
        return sectioned(
            self.sections,
            [(Text(METHOD), self._label_width()), *columns],
            lambda row: [
                self._label(row),
                *(self._cell(row.cells[i], part_widths) for i in which),
            ],
        )

    @property
    def _rows(self) -> Sequence[Row]:
        return [row for section in self.sections for row in section.rows]

    def _total(self, gap: int) -> int:
        return self._label_width() + sum(gap + width for width in self._column_widths())

    def _label(self, row: Row) -> Text:
        return Text(f"{row.label} ({row.reason})" if row.reason else row.label)

    def _label_width(self) -> int:
        """As long as the longest label where there is room; labels wrap before columns are cut."""
        labels = [METHOD, *(str(self._label(row)) for row in self._rows)]
        longest = max(cell_len(label) for label in labels)
        room = self.width - sum(CLEAR_GAP + width for width in self._column_widths())
        return min(longest, max(LEAST_LABEL, min(MOST_LABEL, room)))

    def _part_widths(self) -> list[int]:
        cells = [cell for row in self._rows for cell in row.cells]
        return [max(len(part.heading), *(len(part.text(c)) for c in cells)) for part in self.parts]

    def _column_widths(self) -> list[int]:
        own = sum(self._part_widths()) + len(self.parts) - 1
        words = [[cell_len(word) for word in column.title.split()] for column in self.columns]
        return [max(own, *lengths) for lengths in words]

    def _header(self, column: Column, part_widths: Sequence[int]) -> Text:
        width = sum(part_widths) + len(part_widths) - 1
        lines = wrap(column.title, width, break_long_words=False, break_on_hyphens=False) or [""]
        headings = (p.heading.rjust(w) for p, w in zip(self.parts, part_widths, strict=True))
        return Text("\n".join([*lines, " ".join(headings)]), justify="right")

    def _cell(self, cell: Cell, part_widths: Sequence[int]) -> Text:
        text = Text()
        for part, width in zip(self.parts, part_widths, strict=True):
            if text:
                text.append(" ")
            text.append(part.text(cell).rjust(width), style=part.style(cell))
        return text
