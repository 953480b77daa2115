"""Print plain tables and texts on the console. Text from outside is made safe to print."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style

from specbench.errors import printable, terminal_text

_NARROWEST = 24
"""The last column of a table can always shrink to this width in characters."""
_WHOLE = re.compile(
    r"`[^`]+`|\d %|(?<=: )(?:specbench|python|pip|/\S+) .*|--[a-z-]+ \S+"
    r"|\S+ \((?=[^()]{,30}\))[^()]*(?:=|; paper: )[^()]*\)"
)
"""Matches texts that are not broken between lines: commands, and options with their values, which
users copy; percentages; and labels with settings.
"""
_BETWEEN_WORDS = re.compile("(?<=[^ ]) ")
"""Matches a blank at which a line may be broken. The margin of a line stays with its first word."""


class SafeConsole(Console):
    """A console that reads no markup, and shows control characters as visible signs.

    In a file or a pipe, its width is `plain_width`, so that it is the same on every machine.
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
        """Raise the error that is being handled, because rich would end the program silently."""
        raise


def wrapped(text: str, stream: IO[str]) -> str:
    """Return the text. If the stream is a terminal, break the lines between words."""
    if not stream.isatty():
        return text
    return "\n".join(_lines(text, _width(stream) or 80))


def _width(terminal: IO[str]) -> int:
    """Return the terminal's number of columns. The variable `COLUMNS` has priority."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return int(columns)
    return os.get_terminal_size(terminal.fileno()).columns


def _lines(text: str, width: int) -> Iterator[str]:
    """Yield the text in lines of up to `width` columns, which are broken between words.

    Names, addresses and commands are not broken, so that they can be copied.
    """
    for line in text.split("\n"):
        unbroken = _WHOLE.sub(lambda match: match[0].replace(" ", "\xa0"), line)
        words = _BETWEEN_WORDS.split(unbroken)
        yield from (filled.replace("\xa0", " ") for filled in fill_lines(words, width))


@dataclass(frozen=True, slots=True)
class Prose:
    """A text with a label to the left. On a terminal, its lines are broken between words.

    Print it with `crop=False`.
    """

    text: str
    """The text."""
    style: str = ""
    """The colour and weight, as a style of rich."""
    label: str = ""
    """The label to the left of the first line."""
    indent: int = 0
    """The width in characters of the left margin, which holds the label."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines of the text, each after a margin of `indent` characters, for rich.

        The margin of the first line has the label, and the margins of all other lines are blank.
        `options.max_width` is the available width in characters.
        """
        style = console.get_style(self.style)  # from colour and weight, such as "bold red"
        if console.is_terminal:
            lines = list(_lines(self.text, options.max_width - self.indent))
        else:  # in a file or a pipe, only the text's own line breaks
            lines = self.text.split("\n")
        margin = self.label.ljust(self.indent)
        for line in lines:
            yield Segment((margin + line).rstrip(), style)
            yield Segment.line()
            margin = " " * self.indent


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of texts below headings, with numbers aligned to the right.

    Texts are broken at spaces, except for numbers and the texts of the first column. A word that is
    wider than its column is not broken, so that an address can be copied. Print it with
    `crop=False`.
    """

    headings: Sequence[str]
    """The headings of the columns."""
    rows: Sequence[Sequence[str]]
    """The texts of each row, with one text per column."""
    are_numbers: bool = False
    """True if all columns but the first have numbers."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines of the table, with bold headings, for rich.

        `options.max_width` is the available width in characters.
        """
        widths = self._widths(options.max_width)
        for number, row in enumerate((self.headings, *self.rows)):
            style = Style(bold=True) if number == 0 else None
            # the lines of each column
            folded = [
                fill_lines(text.split(" "), width) for text, width in zip(row, widths, strict=True)
            ]
            for texts in zip_longest(*folded, fillvalue=""):  # a text per column
                yield Segment(self._line(texts, widths), style)
                yield Segment.line()

    def _line(self, texts: Sequence[str], widths: Sequence[int]) -> str:
        """Join the texts of a line, each padded to the width of its column."""
        padded = []
        for i, (text, width) in enumerate(zip(texts, widths, strict=True)):
            blanks = " " * (width - cell_len(text))
            is_number = self.are_numbers and i > 0
            padded.append(blanks + text if is_number else text + blanks)
        return "  ".join(padded).rstrip()

    def _widths(self, max_width: int) -> list[int]:
        """Return the widths of the columns in characters, so that a line fits if possible.

        The widest column shrinks first. No column gets narrower than its longest word, except that
        the last column may shrink to `_NARROWEST`. The first column and columns of numbers do not
        shrink.
        """
        columns = list(zip(self.headings, *self.rows, strict=True))  # the texts of each column
        widths = [max(map(cell_len, texts)) for texts in columns]
        # the width of the longest word in each column
        least_widths = [max(map(_longest_word, texts)) for texts in columns]
        least_widths[-1] = min(least_widths[-1], _NARROWEST)
        # The first column does not shrink. If the columns have numbers, none of them does.
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
    """Return the width of the longest word, or of the whole text if it is blank."""
    return max(map(cell_len, text.split() or [text]))


def fill_lines(words: Iterable[str], width: int) -> list[str]:
    """Arrange the words in lines of up to `width` columns. A wider word has a line of its own.

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
    """Return a table of texts from outside, which are made safe to print."""
    return TextTable(headings, [[*map(printable, row)] for row in rows], are_numbers)
