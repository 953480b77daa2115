"""A comparison on a terminal."""

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from specbench.judge.comparison import Comparison
from specbench.judge.comparison_table import NOT_COMPARABLE, build_comparison
from specbench.report.export.terminal import notes_grid, print_parts, report_console
from specbench.report.layout import draw, first_that_fits
from specbench.report.notes import Note


def print_comparison(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """Print a comparison on stdout, or on the console given."""
    table, console = build_comparison(comparisons), console or report_console()
    parts: list[RenderableType] = []
    if not table.is_comparable:
        parts += [Text(NOT_COMPARABLE, style="bold red"), Text()]
    parts += [notes_grid([Note(*pair) for pair in table.legend]), Text()]
    for block in table.blocks:
        fitting = first_that_fits([block.table, block.short_table], console.width)
        parts += [Text(block.heading, style="bold"), Text(), *draw(fitting, console.width)]
        parts += [Text(block.sentence, style="" if table.is_comparable else "red"), Text()]
    parts.append(notes_grid(table.notes))
    print_parts(parts, console)
