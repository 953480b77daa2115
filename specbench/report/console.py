"""The console and the plain tables of commands. Text from outside is made safe to print."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import fill, wrap
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style

from specbench.errors import printable, terminal_text

_NARROWEST = 24
"""Least width of the last column of a table of texts, if it has longer words."""
_WHOLE = re.compile(
    r"`[^`]+`|\d %|(?<=: )(?:specbench|python|pip|/\S+) .*|--[a-z-]+ \S+"
    r"|\S+ \((?=[^()]{,30}\))[^()]*(?:=|; paper: )[^()]*\)"
)
"""Commands and options with their values, since a copy of them must run; percents; labels with
settings.
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
        """Raise the error that is being handled, where rich would end the program silently."""
        raise


def wrapped(text: str, stream: IO[str]) -> str:
    """The text with lines wrapped at words if the stream is a terminal."""
    if not stream.isatty():
        return text
    given = os.environ.get("COLUMNS", "")
    width = int(given) if given.isdigit() else os.get_terminal_size(stream.fileno()).columns
    return "\n".join(_lines(text, width or 80))


def _lines(text: str, width: int) -> Iterator[str]:
    """The text in lines that are broken at words.

    Names, addresses and commands stay whole, so that they can be copied.
    """
    for line in text.split("\n"):
        whole = _WHOLE.sub(lambda found: found[0].replace(" ", "\xa0"), line)
        filled = fill(whole, width, break_long_words=False, break_on_hyphens=False)
        yield from filled.replace("\xa0", " ").split("\n")


@dataclass(frozen=True, slots=True)
class Prose:
    """A text, beside a label of `indent` characters: wrapped at words on a terminal, else not.

    Print it with `crop=False`.
    """

    text: str
    style: str = ""
    label: str = ""
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        style, start = console.get_style(self.style), self.label.ljust(self.indent)
        width = options.max_width - self.indent
        for line in _lines(self.text, width) if console.is_terminal else self.text.split("\n"):
            yield Segment((start + line).rstrip(), style)
            yield Segment.line()
            start = " " * self.indent


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of texts below headings; numbers are aligned right.

    Texts wrap at spaces, but not those of the first column, nor numbers. A word that is wider than
    its column stays whole, so that an address can be copied: print the table with `crop=False`.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    are_numbers: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        widths = self._widths(options.max_width)
        for number, row in enumerate((self.headings, *self.rows)):
            cells = [_folded(text, width) for text, width in zip(row, widths, strict=True)]
            for texts in zip_longest(*cells, fillvalue=""):
                padded = []
                for i, (text, width) in enumerate(zip(texts, widths, strict=True)):
                    blank = " " * (width - cell_len(text))
                    padded.append(blank + text if self.are_numbers and i else text + blank)
                style = Style(bold=True) if number == 0 else None
                yield Segment("  ".join(padded).rstrip(), style)
                yield Segment.line()

    def _widths(self, most: int) -> list[int]:
        """The columns' widths. The widest shrinks first, the last to less than its words."""
        columns = [*zip(self.headings, *self.rows, strict=True)]
        widths = [max(map(cell_len, texts)) for texts in columns]
        least = [max(cell_len(w) for t in texts for w in t.split() or [t]) for texts in columns]
        least[-1] = min(least[-1], _NARROWEST)
        num_kept = len(columns) if self.are_numbers else 1
        least[:num_kept] = widths[:num_kept]
        while sum(widths) + 2 * len(widths) - 2 > most:
            wide = max(range(len(widths)), key=lambda i: widths[i] * (widths[i] > least[i]))
            if widths[wide] <= least[wide]:
                break
            widths[wide] -= 1
        return widths


def _folded(text: str, width: int) -> list[str]:
    return wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False) or [""]


def text_table(
    headings: Sequence[str], rows: Iterable[Iterable[str]], *, are_numbers: bool = False
) -> TextTable:
    """A table of texts from outside."""
    return TextTable(headings, [[*map(printable, row)] for row in rows], are_numbers)
