"""The console and the plain tables of commands: text from outside reaches no terminal raw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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


def text_table(
    headings: Sequence[str], rows: Iterable[Iterable[str]], *, are_numbers: bool = False
) -> Table:
    """Rows of texts below headings; numbers are aligned right. The first column does not wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, heading in enumerate(headings):
        is_right = are_numbers and place > 0
        table.add_column(
            heading,
            justify="right" if is_right else "left",
            no_wrap=is_right or place == 0,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(printable, row))
    return table
