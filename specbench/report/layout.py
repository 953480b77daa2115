"""Lay out a table in a given width in characters, as parts that rich prints.

If the table is too wide, the columns with the highest rank are left out first. If it is still too
wide, the last columns continue in further tables. A label is on one line unless it takes more than
half the width.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from rich.cells import cell_len, chop_cells
from rich.console import Group, RenderableType
from rich.text import Text

from specbench.report.console import Prose, fill_lines
from specbench.report.table import Cell, Column, Row, Table, Tone

_STYLES: Mapping[Tone, str] = {"good": "green", "bad": "red", "unsure": "yellow", "missing": "dim"}
_GAP = 2
"""A table counts as fitting if it has room for this many blanks between columns."""
_LEAST_LABEL = 12
"""The smallest width of the labels in characters, unless all labels are shorter."""
_MOST_LABEL = 34
"""The largest width of the labels in characters."""
_LABEL_WORD = re.compile(r"\([^()]*\)|\S+")
"""Matches a word of a label, which is not broken. A text in parentheses is one word."""


def first_in_full(tables: Sequence[Table], width: int) -> Table:
    """Return the first table that fits, or else the last table without some of its columns."""
    for table in tables:
        if _Layout(table, width).fits:
            return table
    return narrowed(tables[-1], width)


def narrowed(table: Table, width: int) -> Table:
    """Return the table without columns of the highest ranks, until it fits into the width.

    Columns of rank 0 are never left out.
    """
    ranks = {column.rank for column in table.columns if column.rank}
    for highest in sorted(ranks, reverse=True):
        if _Layout(table, width).fits:
            break
        table = table.take([i for i, column in enumerate(table.columns) if column.rank != highest])
    return table


def draw(table: Table, width: int) -> Iterable[RenderableType]:
    """Yield the table in `width` characters, in several parts if necessary, with a blank line after
    each.
    """
    layout = _Layout(narrowed(table, width), width)
    for units in layout.split():
        yield Group(*layout.lines(units))
        yield Text()


@dataclass(frozen=True, slots=True)
class _Unit:
    """Columns that stay together, with aligned texts: all columns of a task, or a single column."""

    width: int
    """The number of characters in each line."""
    heading: Sequence[Text]
    """The lines of the heading."""
    rows: Sequence[Text]
    """A line for each row of the table."""

    def heading_line(self, from_below: int) -> Text:
        """Return a line of the heading; 1 is the lowest. Lines above the heading are blank."""
        if from_below > len(self.heading):
            return Text(" " * self.width)
        return self.heading[-from_below]


class _Layout:
    """The layout of a table in a given width: its units of columns, and its labels' width."""

    def __init__(self, table: Table, width: int) -> None:
        """Divide the table into units, and choose the width of its labels.

        A unit has the columns of a task, or a single column without a task. The labels are the
        names of the rows, to the left of all units. `width` is the available width in characters.
        """
        self._table = table
        self._width = width
        # [units] Pairs of a task's title, which is "" without a task, and the unit's columns.
        titled_columns = table.by_task(table.columns)
        # [rows of the table][units] Pairs of the same title and the row's cells in these columns.
        titled_cells_by_row = [table.by_task(row.cells) for row in table.rows]
        self._units = []
        for unit_index, (task, columns) in enumerate(titled_columns):
            # [rows of the table][columns of the unit]
            cells_by_row = [titled_cells[unit_index][1] for titled_cells in titled_cells_by_row]
            self._units.append(_unit(task, columns, cells_by_row))
        self._label_width = self._best_label_width()  # in characters; needs the widths of the units

    def _best_label_width(self) -> int:
        """Return the width of the labels: what the columns leave, within limits."""
        labels = [self._table.heading, *map(_label, self._table.rows)]
        longest = max(map(cell_len, labels))
        half = min(_MOST_LABEL, self._width // 2)
        # Labels get this width even if columns then have to continue in another table.
        least = min(longest, max(_LEAST_LABEL, half))
        # The characters that the columns of all units leave for the labels.
        room = self._width - sum(_GAP + unit.width for unit in self._units)
        return min(longest, max(least, min(_MOST_LABEL, room)))

    @property
    def fits(self) -> bool:
        """True if all columns fit side by side, with `_GAP` blanks between them."""
        return self._width_of(self._units, _GAP) <= self._width

    def _width_of(self, units: Sequence[_Unit], gap: int) -> int:
        """Return the width of the labels and units, with `gap` blanks before each unit."""
        return self._label_width + sum(gap + unit.width for unit in units)

    @property
    def _gap(self) -> int:
        """The widest gap in characters with which all columns fit, or `_GAP` if they never fit."""
        for gap in (3, 2, 1):
            if self._width_of(self._units, gap) <= self._width:
                return gap
        return _GAP

    def split(self) -> Iterable[Sequence[_Unit]]:
        """Yield the units of each table: all units if they fit, or else as many as fit."""
        pending: list[_Unit] = []
        for unit in self._units:
            if pending and self._width_of([*pending, unit], self._gap) > self._width:
                yield pending
                pending = []
            pending.append(unit)
        yield pending

    def lines(self, units: Sequence[_Unit]) -> Iterable[RenderableType]:
        """Yield the lines of a table with these units: head, rule, then the rows of each group.

        A group begins with a line for its label, if it has one. If the label of a row takes several
        lines, its numbers are on the last of them. In each unit, `heading` has the lines of the
        head, and `rows` has a line for each row of the table.
        """
        num_head_lines = max((len(unit.heading) for unit in units), default=1)
        for from_below in range(num_head_lines, 0, -1):  # 1 is the lowest line of the head
            # the heading above the labels
            label = self._table.heading if from_below == 1 else ""
            heading_texts = [unit.heading_line(from_below) for unit in units]
            yield self._line(Text(label, "bold"), heading_texts)
        # as wide as the labels and the units with their gaps
        yield Text("─" * self._width_of(units, self._gap))
        row_indices = count()  # indices of rows, counted over all groups
        for group in self._table.groups:
            if group.label:
                yield Prose(group.label, "italic")
            for row in group.rows:
                style = "bold red" if row.has_failed else ""  # some of its samples failed
                *first_lines, last_line = fold_label(_label(row), self._label_width)
                for label_line in first_lines:
                    yield Text(label_line, style)
                row_index = next(row_indices)
                cell_texts = [unit.rows[row_index] for unit in units]
                yield self._line(Text(last_line, style), cell_texts)

    def _line(self, label: Text, texts: Iterable[Text]) -> Text:
        """Return a line with a label, and to the right of it the texts of the units."""
        line = Text(no_wrap=True, overflow="ignore").append_text(label)
        line.pad_right(self._label_width - label.cell_len)
        for text in texts:
            line.append(" " * self._gap).append_text(text)
        return line


def _unit(task: str, columns: Sequence[Column], cells_by_row: Sequence[Sequence[Cell]]) -> _Unit:
    """Return the unit of a task, with its columns side by side below the task's title.

    A unit is columns that stay together when a table is split. It has the lines of their heading,
    and a line for each row. `task` is the title, which is "" for a single column without a task.
    `cells_by_row` has the cells [rows of the table][columns]. Widths are in characters.
    """
    # The lines of each column's heading. `short` is a shorter heading, or "".
    lines_by_column = [(column.short or column.heading).splitlines() or [""] for column in columns]
    column_widths = []
    for column_index, column_lines in enumerate(lines_by_column):
        cell_texts = [cells[column_index].text for cells in cells_by_row]
        column_widths.append(max(map(cell_len, [*column_lines, *cell_texts])))
    num_gaps = len(column_widths) - 1  # of one blank each
    # The words of the title. The unit is at least as wide as the longest of them.
    title_words = _wrap(task, 1)
    # the width of the unit
    width = max([sum(column_widths) + num_gaps, *map(cell_len, title_words)])
    if task:
        unit_lines = _wrap(task, width)  # the lines of the title
        # Below the title, a line has the first line of each column's heading.
        lowest_line = " ".join(
            column_lines[0].rjust(column_width)
            for column_lines, column_width in zip(lines_by_column, column_widths, strict=True)
        )
        if lowest_line.strip():
            unit_lines.append(lowest_line)
    else:
        unit_lines = lines_by_column[0]  # the heading of the only column
    return _Unit(
        width,
        heading=[_aligned(Text(line, "bold"), width) for line in unit_lines],
        rows=[_aligned(_side_by_side(cells, column_widths), width) for cells in cells_by_row],
    )


def _aligned(text: Text, width: int) -> Text:
    """Align the text to the right in `width` characters."""
    text.pad_left(max(0, width - text.cell_len))
    return text


def _side_by_side(cells: Sequence[Cell], widths: Sequence[int]) -> Text:
    """Return a line with the texts of cells, each aligned to the right in its width."""
    texts = []
    for cell, width in zip(cells, widths, strict=True):
        style = _STYLES.get(cell.tone, "")
        if cell.is_best:
            style = f"bold {style}".strip()
        texts.append(Text(cell.text.rjust(width), style))
    return Text(" ").join(texts)


def _wrap(task: str, width: int) -> list[str]:
    """Break the title of a task into lines of up to `width` characters, perhaps before "-like"."""
    words = task.replace("-like", " -like").split()
    return [line.replace(" -like", "-like") for line in fill_lines(words, width)]


def _label_words(label: str, width: int) -> Iterator[str]:
    """Yield the words between which a label may be broken, for lines of `width` characters.

    A text in parentheses is one word if it fits. If it does not, it is broken after semicolons, as
    into "(8 nodes;" and "paper: 60 nodes, 8 levels)". Without semicolons, it is broken between its
    words.
    """
    for word in _LABEL_WORD.findall(label):
        if cell_len(word) <= width:
            yield word
        elif "; " in word:
            yield from re.split(r"(?<=;) ", word)
        else:
            yield from word.split()


def fold_label(label: str, width: int) -> list[str]:
    """Break the label of a row into lines of up to `width` characters.

    It is broken between words, and a text in parentheses stays on one line if it fits. A word that
    is wider than a line is cut. An empty label is one empty line.
    """
    lines: list[str] = []
    for full_line in fill_lines(_label_words(label, width), width):
        # A part of a text in parentheses may be too wide for a line, and so may be a word.
        for line in fill_lines(full_line.split(), width):
            lines += chop_cells(line, width)
    return lines or [""]


def _label(row: Row) -> str:
    return f"{row.label} ({row.reason})" if row.reason else row.label
