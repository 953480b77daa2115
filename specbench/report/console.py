"""Print plain tables and texts on the console. Text from outside is made safe to print."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import fill
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style

from specbench.errors import printable, terminal_text

_NARROWEST = 24
"""Smallest width in characters of a table's last column, if it has longer words."""
_WHOLE = re.compile(
    r"`[^`]+`|\d %|(?<=: )(?:specbench|python|pip|/\S+) .*|--[a-z-]+ \S+"
    r"|\S+ \((?=[^()]{,30}\))[^()]*(?:=|; paper: )[^()]*\)"
)
"""Matches texts that stay on one line: commands and options with their values, which users copy;
percentages; and labels with settings.
"""


class SafeConsole(Console):
    """A console that takes no markup, and shows control characters as visible signs.

    `plain_width` is the width in a file or a pipe, the same on every machine.
    """

    def __init__(self, *, plain_width: int | None = None, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)
        if plain_width and not self.is_terminal:
            self.width = plain_width

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else terminal_text(text), style, control)

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled. Rich would end the program silently instead."""
        raise


def wrapped(text: str, stream: IO[str]) -> str:
    """The text, with lines wrapped between words if the stream is a terminal."""
    if not stream.isatty():
        return text
    return "\n".join(_lines(text, _width(stream) or 80))


def _width(terminal: IO[str]) -> int:
    """The number of columns: `COLUMNS` if the user set it, else the terminal's."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return int(columns)
    return os.get_terminal_size(terminal.fileno()).columns


def _lines(text: str, width: int) -> Iterator[str]:
    """The text in lines of up to `width` characters, broken between words.

    Names, addresses and commands are not broken, so that they can be copied.
    """
    for line in text.split("\n"):
        unbroken = _WHOLE.sub(lambda match: match[0].replace(" ", "\xa0"), line)
        filled = fill(unbroken, width, break_long_words=False, break_on_hyphens=False)
        yield from filled.replace("\xa0", " ").split("\n")


@dataclass(frozen=True, slots=True)
class Prose:
    """A text with a label to the left. On a terminal, the text is wrapped between words.

    Print it with `crop=False`.
    """

    text: str
    """The text."""
    style: str = ""
    """Colour and weight, as a style of rich."""
    label: str = ""
    """The label to the left of the first line."""
    indent: int = 0
    """Width in characters of the margin to the left, which holds the label."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines of the text for rich, each after a margin of `indent` characters.

        The margin of the first line holds the label, the margins of other lines are blank. rich
        calls this method to print the text; `options.max_width` is the room in characters.
        """
        style = console.get_style(self.style)  # from colour and weight, such as "bold red"
        if console.is_terminal:
            # broken at words
            lines = list(_lines(self.text, options.max_width - self.indent))
        else:  # a file or a pipe: only the text's line breaks
            lines = self.text.split("\n")
        margin = self.label.ljust(self.indent)
        for line in lines:
            yield Segment((margin + line).rstrip(), style)
            yield Segment.line()
            margin = " " * self.indent


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of texts below headings; numbers are aligned right.

    Texts wrap at spaces, except numbers and the texts of the first column. A word that is wider
    than its column is not broken, so that an address can be copied: print with `crop=False`.
    """

    headings: Sequence[str]
    """The headings of the columns."""
    rows: Sequence[Sequence[str]]
    """The texts of each row, one per column."""
    are_numbers: bool = False
    """True if all columns except the first have numbers."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines of the table for rich: bold headings, then the rows.

        `options.max_width` is the room in characters.
        """
        widths = self._widths(options.max_width)
        for number, row in enumerate((self.headings, *self.rows)):
            style = Style(bold=True) if number == 0 else None
            # lines of each column
            folded = [
                fill_lines(text.split(" "), width) for text, width in zip(row, widths, strict=True)
            ]
            for texts in zip_longest(*folded, fillvalue=""):  # a text per column
                yield Segment(self._line(texts, widths), style)
                yield Segment.line()

    def _line(self, texts: Sequence[str], widths: Sequence[int]) -> str:
        """The texts of one line, each in the width of its column."""
        padded = []
        for i, (text, width) in enumerate(zip(texts, widths, strict=True)):
            blanks = " " * (width - cell_len(text))
            is_number = self.are_numbers and i > 0
            padded.append(blanks + text if is_number else text + blanks)
        return "  ".join(padded).rstrip()

    def _widths(self, max_width: int) -> list[int]:
        """The width of each column in characters, so that a line fits into `max_width` if possible.

        The widest column shrinks first. A column shrinks at most to its longest word, and the last
        column to `_NARROWEST` if its longest word is wider. The first column and columns of numbers
        do not shrink. `self.rows` has the texts of each row, one per heading.
        """
        columns = list(zip(self.headings, *self.rows, strict=True))  # texts of each column
        widths = [max(map(cell_len, texts)) for texts in columns]
        # the width of the longest word in each column
        least_widths = [max(map(_longest_word, texts)) for texts in columns]
        least_widths[-1] = min(least_widths[-1], _NARROWEST)
        # The number of columns that do not shrink: all if they have numbers, else the first.
        num_fixed = len(columns) if self.are_numbers else 1
        least_widths[:num_fixed] = widths[:num_fixed]
        gaps_width = 2 * (len(widths) - 1)  # two blanks between columns
        while sum(widths) + gaps_width > max_width:
            # indices of columns
            can_shrink = [i for i in range(len(widths)) if widths[i] > least_widths[i]]
            if not can_shrink:
                break
            widest = max(can_shrink, key=lambda i: widths[i])  # index of a column
            widths[widest] -= 1
        return widths


def _longest_word(text: str) -> int:
    """The width of the longest word; for a blank text, the width of the text."""
    return max(map(cell_len, text.split() or [text]))


def fill_lines(words: Iterable[str], width: int) -> list[str]:
    """The words in lines of up to `width` columns. A wider word has a line of its own.

    Most East Asian characters take two columns.
    """
    lines: list[str] = []
    for word in words:
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def text_table(
    headings: Sequence[str], rows: Iterable[Iterable[str]], *, are_numbers: bool = False
) -> TextTable:
    """A table of texts from outside, which are made safe to print."""
    return TextTable(headings, [[*map(printable, row)] for row in rows], are_numbers)
