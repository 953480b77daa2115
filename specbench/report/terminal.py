"""A table on a terminal, at whatever width there is.

Wide: speedup with its interval and MAT side by side. Medium (100 columns and six tasks): speedup
and MAT side by side, the intervals in a second grid. Narrow: speedup and MAT one below the other.
Where the tasks still do not fit, they go on in further grids.
"""

from collections.abc import Callable, Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.report import costs, formats
from specbench.report.costs import cost_columns
from specbench.report.grid import (
    CLEAR_GAP,
    DIVIDER,
    MAT,
    METHOD,
    MOST_LABEL,
    PLUS_MINUS,
    SPAN,
    SPEEDUP,
    Grid,
    Section,
    sectioned,
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
    """The table, its overview and its notes."""
    parts: list[RenderableType] = [Text(table.title, style="bold"), Text()]
    for block in table.blocks:
        parts.extend(_block(block, table, console.width))
    parts.append(notes_grid(table.notes))
    print_parts(parts, console)


def print_parts(parts: Iterable[RenderableType], console: Console) -> None:
    """One below the other. What the console's encoding lacks is replaced."""
    if console.encoding.lower().startswith("utf"):
        console.print(Group(*parts))
        return
    with console.capture() as capture:
        console.print(Group(*parts))
    text = capture.get().translate(_PLAIN_SIGNS)
    console.file.write(text.encode(console.encoding, "replace").decode(console.encoding))


def _block(block: Block, table: Table, width: int) -> Iterable[RenderableType]:
    yield Text(block.heading, style="bold")
    if not block.rows or not table.columns:
        yield Text("Nothing was run.\n")
        return
    sections = _sections(block, table, lambda row: True)
    others = _sections(block, table, _has_interval)
    with_intervals = Grid(sections, table.columns, (PLUS_MINUS, MAT), width)
    pairs = Grid(sections, table.columns, (SPEEDUP, MAT), width)
    if others and with_intervals.fits:
        yield from _spaced(with_intervals)
    elif pairs.fits:
        yield from _spaced(pairs)
    else:
        yield from _spaced(Grid(sections, table.columns, (SPEEDUP,), width))
        yield from _spaced(Grid(sections, table.columns, (MAT,), width))
    if others and not with_intervals.fits:
        yield Text("95 % interval of each speedup", style="bold")
        yield from _spaced(Grid(others, table.columns, (SPAN,), width))
    yield Text("Over all tasks" if len(table.columns) > 1 else "In all", style="bold")
    yield _listing(sections, OVERVIEW, width)
    yield Text()
    if columns := cost_columns(block.rows):
        yield Text(costs.TITLE, style="bold")
        yield _listing(sections, columns, width)
        yield Text()
    for group in block.groups:
        yield Text(group.verdict if table.is_one_run else f"{group.label}: {group.verdict}")
    yield Text()


def _sections(block: Block, table: Table, is_shown: Callable[[Row], bool]) -> list[Section]:
    """A section per run with the rows to show, without a label where there is but one run."""
    sections = [
        Section("" if table.is_one_run else group.label, [*filter(is_shown, group.rows)])
        for group in block.groups
    ]
    return [section for section in sections if section.rows]


def _spaced(grid: Grid) -> Iterable[RenderableType]:
    for table in grid.tables():
        yield table
        yield Text()


def _has_interval(row: Row) -> bool:
    return any(formats.interval_of(cell.speedup) for cell in row.cells)


def _listing(
    sections: Sequence[Section], wanted: Sequence[OverviewColumn], width: int
) -> RenderableType:
    """One line per method, with as many of the columns as there is room for."""
    rows = [row for section in sections for row in section.rows]
    label_width = min(
        MOST_LABEL, max(cell_len(label) for label in [METHOD, *(row.label for row in rows)])
    )
    widths = {column: _listing_width(column, rows) for column in wanted}
    while label_width + sum(widths.values()) > width:
        last = max(widths, key=lambda column: column.rank)
        if not last.rank:
            break
        del widths[last]
    columns = [
        (Text(column.heading, justify="right"), column_width - DIVIDER)
        for column, column_width in widths.items()
    ]
    return sectioned(
        sections,
        [(Text(METHOD), label_width), *columns],
        lambda row: _texts(row, tuple(widths)),
    )


def _texts(row: Row, columns: Sequence[OverviewColumn]) -> list[Text]:
    label_style = "bold red" if row.overall.pooled.num_failed else ""
    speedup_style = sureness(row.overall.speedup)
    return [
        Text(row.label, style=label_style),
        *(Text(c.text(row), style=speedup_style if c is OVERVIEW[0] else "") for c in columns),
    ]


def _listing_width(column: OverviewColumn, rows: Sequence[Row]) -> int:
    texts = [*column.heading.splitlines(), *(column.text(row) for row in rows)]
    return CLEAR_GAP + max(map(cell_len, texts))


def notes_grid(notes: Sequence[Note]) -> RichTable:
    """The notes below a table: labels in one column, texts in the other."""
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for note in notes:
        style = "yellow" if note.is_warning else "dim"
        table.add_row(Text(note.label, style=style), Text(note.text, style=style))
    return table
