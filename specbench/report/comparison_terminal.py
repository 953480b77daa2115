"""A comparison on a terminal: the numbers side by side where there is room, else one by one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.analysis.compare import Comparison
from specbench.analysis.pairs import CellPair
from specbench.analysis.stats import Estimate, Value
from specbench.report.comparison import (
    NOT_COMPARABLE,
    ComparedBlock,
    ComparedGroup,
    ComparedNumber,
    ComparedRow,
    build_comparison,
)
from specbench.report.comparison_sentences import is_told_apart, ratio_text
from specbench.report.grid import METHOD
from specbench.report.terminal import notes_grid, print_parts, report_console

_GAP, _DIVIDER = 2, 1
"""Characters between two columns; rich puts the divider there itself."""


def print_comparison(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """The runs by letter, a table and a sentence for each pair and temperature, the notes; on
    stdout unless a console is given.
    """
    table, console = build_comparison(comparisons), console or report_console()
    parts: list[RenderableType] = []
    if not table.is_comparable:
        parts += [Text(NOT_COMPARABLE, style="bold red"), Text()]
    parts.append(_lines(table.legend))
    parts.append(Text())
    for block in table.blocks:
        parts += [Text(block.heading, style="bold"), Text()]
        for shown in _tables(block, console.width):
            parts += [shown, Text()]
        parts += [Text(block.sentence, style="" if table.is_comparable else "red"), Text()]
    parts.append(notes_grid(table.notes))
    print_parts(parts, console)


def _tables(block: ComparedBlock, width: int) -> Iterable[RichTable]:
    for is_short in (False, True):
        whole = _Layout(block, block.numbers, is_short)
        if whole.width <= width:
            return [whole.table()]
    return [_Layout(block, [number], is_short=False).table() for number in block.numbers]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Some numbers of a block side by side: both runs' values and the ratio of each."""

    block: ComparedBlock
    numbers: Sequence[ComparedNumber]
    is_short: bool

    @property
    def width(self) -> int:
        return sum(self._widths())

    def _widths(self) -> list[int]:
        labels = [self._first, *self._titles(), *(f" {row.label}" for row in self._rows())]
        lines = [[cell.plain for cell in self._cells(row.cell)] for row in self._rows()]
        headings = [text.splitlines() for text in self._headings()]
        columns = [
            max(cell_len(text) for text in (*heading, *column)) + _GAP
            for heading, column in zip(headings, zip(*lines, strict=True), strict=True)
        ]
        return [max(map(cell_len, labels)), *columns]

    def table(self) -> RichTable:
        shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
        first, *widths = self._widths()
        shown.add_column(self._first, width=first, vertical="bottom", no_wrap=True)
        for heading, width in zip(self._headings(), widths, strict=True):
            shown.add_column(
                Text(heading, justify="right"),
                justify="right",
                vertical="bottom",
                width=width - _DIVIDER,
                no_wrap=True,
            )
        for group in self.block.groups:
            self._add(shown, group, is_alone=len(self.block.groups) == 1)
        return shown

    def _add(self, shown: RichTable, group: ComparedGroup, *, is_alone: bool) -> None:
        if self.block.is_cross:
            (row,) = group.rows
            shown.add_row(Text(group.title), *self._cells(row.cell))
            return
        if not is_alone:
            shown.add_row(Text(group.title, style="bold"))
        for row in group.rows:
            shown.add_row(Text(row.label if is_alone else f" {row.label}"), *self._cells(row.cell))

    @property
    def _first(self) -> str:
        return "Task" if self.block.is_cross else METHOD

    def _rows(self) -> list[ComparedRow]:
        return [row for group in self.block.groups for row in group.rows]

    def _titles(self) -> list[str]:
        return [group.title for group in self.block.groups]

    def _headings(self) -> list[str]:
        subject, reference = self.block.letters
        letters = sorted(self.block.letters)
        ratio = f"{subject} / {reference}"
        return [
            text
            for number in self.numbers
            for text in (f"{number.heading}\n{letters[0]}", letters[1], ratio)
        ]

    def _cells(self, cell: CellPair) -> list[Text]:
        """Both runs' values in the order of their letters, and the ratio, for each number."""
        is_subject_first = self.block.letters[0] < self.block.letters[1]
        texts = []
        for number in self.numbers:
            pair = number.of(cell)
            values = [pair.subject, pair.reference]
            for value in values if is_subject_first else reversed(values):
                texts.append(Text(number.text(value)))
            ratio = ratio_text(pair.ratio, is_short=self.is_short)
            texts.append(Text(ratio, style=_style(pair.ratio)))
        return texts


def _style(ratio: Value) -> str:
    """Green and red are claims that the interval bears out."""
    if not isinstance(ratio, Estimate) or not is_told_apart(ratio):
        return "dim"
    return "green" if ratio.value > 1 else "red"


def _lines(pairs: Iterable[tuple[str, str]]) -> RichTable:
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in pairs:
        grid.add_row(Text(name, style="bold"), Text(text))
    return grid
