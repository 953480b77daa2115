"""A table on a terminal, at whatever width there is.

Wide: speedup with its interval and MAT side by side. Medium (100 columns and six tasks): speedup
and MAT side by side, the intervals in a second grid. Narrow: speedup and MAT one below the other.
Where the tasks still do not fit, they go on in further grids.
"""

from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.analysis.metrics import BASELINE
from specbench.report import formats
from specbench.report.grid import (
    CLEAR_GAP,
    MAT,
    METHOD,
    MOST_LABEL,
    PLUS_MINUS,
    SPAN,
    SPEEDUP,
    Grid,
    sureness,
)
from specbench.report.notes import Note
from specbench.report.overview import OVERVIEW, OverviewColumn
from specbench.report.table import Block, Row, Table

_PLAIN_WIDTH = 120
"""Columns of an output that is no terminal: a file or a pipe."""

_PLAIN_SIGNS = str.maketrans({formats.NONE: "-", "±": "~"})


def report_console() -> Console:
    """A console on stdout. What is no terminal gets a fixed width, so that a file is the same
    wherever it was made.
    """
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def print_table(table: Table, console: Console) -> None:
    """The table, its overview and its notes. What the console's encoding lacks is replaced."""
    parts: list[RenderableType] = [Text(table.title, style="bold"), Text()]
    for block in table.blocks:
        parts.extend(_block(block, table, console.width))
    parts.append(_notes(table.notes))
    if console.encoding.lower().startswith("utf"):
        console.print(Group(*parts))
        return
    with console.capture() as capture:
        console.print(Group(*parts))
    text = capture.get().translate(_PLAIN_SIGNS)
    console.file.write(text.encode(console.encoding, "replace").decode(console.encoding))


def _block(block: Block, table: Table, width: int) -> Iterable[RenderableType]:
    heading = block.heading if table.is_one_model else f"{block.heading}, {block.model}"
    yield Text(heading, style="bold")
    if not block.rows or not table.columns:
        yield Text("Nothing was run.\n")
        return
    rows, others = block.rows, _others(block)
    with_intervals = Grid(rows, table.columns, (PLUS_MINUS, MAT), width)
    pairs = Grid(rows, table.columns, (SPEEDUP, MAT), width)
    has_intervals = any(formats.interval_of(cell.speedup) for row in others for cell in row.cells)
    if has_intervals and with_intervals.fits:
        yield from _spaced(with_intervals)
    elif pairs.fits:
        yield from _spaced(pairs)
    else:
        yield from _spaced(Grid(rows, table.columns, (SPEEDUP,), width))
        yield from _spaced(Grid(rows, table.columns, (MAT,), width))
    if has_intervals and not with_intervals.fits:
        yield Text("95 % interval of each speedup", style="bold")
        yield from _spaced(Grid(others, table.columns, (SPAN,), width))
    yield Text("Over all tasks" if len(table.columns) > 1 else "In all", style="bold")
    yield _overview(block, width)
    yield Text()
    yield Text(block.verdict)
    yield Text()


def _spaced(grid: Grid) -> Iterable[RenderableType]:
    for table in grid.tables():
        yield table
        yield Text()


def _others(block: Block) -> Sequence[Row]:
    """The rows with anything to say besides the baseline's."""
    return [row for row in block.rows if row.method != BASELINE and not row.reason]


def _overview(block: Block, width: int) -> RichTable:
    """One line per method, with as many columns as there is room for."""
    labels = [METHOD, *(row.label for row in block.rows)]
    most = min(MOST_LABEL, max(map(cell_len, labels)))
    columns = list(OVERVIEW)
    while most + sum(_overview_width(column, block) for column in columns) > width:
        last = max(columns, key=lambda column: column.rank)
        if not last.rank:
            break
        columns.remove(last)
    table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
    table.add_column(METHOD, overflow="fold", max_width=MOST_LABEL, vertical="bottom")
    for column in columns:
        heading = Text(column.heading, justify="right")
        table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    for row in block.rows:
        first, *others = (f" {column.text(row)}" for column in columns)
        style = "bold red" if row.overall.pooled.num_failed else ""
        speedup = Text(first, style=sureness(row.overall.speedup))
        table.add_row(Text(row.label, style=style), speedup, *map(Text, others))
    return table


def _overview_width(column: OverviewColumn, block: Block) -> int:
    texts = [*column.heading.splitlines(), *(column.text(row) for row in block.rows)]
    return CLEAR_GAP + max(map(cell_len, texts))


def _notes(notes: Sequence[Note]) -> RichTable:
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for note in notes:
        style = "yellow" if note.is_warning else "dim"
        table.add_row(Text(note.label, style=style), Text(note.text, style=style))
    return table
