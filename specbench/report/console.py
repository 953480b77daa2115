"""The console and the plain tables of commands: text from outside reaches no terminal raw."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from specbench.errors import printable, terminal_text


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


_WHOLE = re.compile(r"`[^`]+`|(?<=: )(?:specbench|python|pip|/\S+) .*|--[a-z-]+ \S+")
"""Commands and options with their values: a copy of them must run."""


def wrapped(text: str, stream: IO[str]) -> str:
    """The text with lines wrapped at words if the stream is a terminal.

    Names, addresses and commands stay whole, so that they can be copied.
    """
    if not stream.isatty():
        return text
    given = os.environ.get("COLUMNS", "")
    width = int(given) if given.isdigit() else os.get_terminal_size(stream.fileno()).columns
    lines = [
        fill(
            _WHOLE.sub(lambda found: found[0].replace(" ", "\xa0"), line),
            width or 80,
            break_long_words=False,
            break_on_hyphens=False,
        ).replace("\xa0", " ")
        for line in text.split("\n")
    ]
    return "\n".join(lines)


def text_table(
    headings: Sequence[str], rows: Iterable[Iterable[str]], *, are_numbers: bool = False
) -> Table:
    """Rows of texts below headings; numbers are aligned right. The first column does not wrap,
    and no word but in the last.
    """
    shown = [[*map(printable, row)] for row in rows]
    cells = [*zip(*shown, strict=True)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, heading in enumerate(headings):
        is_right = are_numbers and place > 0
        table.add_column(
            heading,
            justify="right" if is_right else "left",
            no_wrap=is_right or place == 0,
            overflow="fold",
            min_width=_longest_word(cells[place]) if place < len(cells) - 1 else None,
        )
    for row in shown:
        table.add_row(*row)
    return table


def _longest_word(texts: Iterable[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)
