"""A report on a terminal, at whatever width there is.

Wide: speedup with its interval and MAT side by side. Medium (100 columns and six tasks): speedup
and MAT side by side, the intervals in a second table. Narrow: speedup and MAT in tables of their
own. Columns that still do not fit continue in further tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import compress
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.report import formats, sections, serving_tables
from specbench.report.build import Report
from specbench.report.console import SafeConsole
from specbench.report.notes import Note, short_notes
from specbench.report.results import Block, Results
from specbench.report.table import Cell, Column, Row, Table, Tone

_PLAIN_WIDTH = 120
"""Columns of a file or a pipe."""
_PLAIN_SIGNS = str.maketrans({formats.NONE: "-", "±": "~"})
_STYLES: Mapping[Tone, str] = {"good": "green", "bad": "red", "unsure": "yellow", "missing": "dim"}
_DIVIDER = 1
"""Characters that rich puts between two columns: a part of the gap."""
_GAP = 2
_LEAST_LABEL, _MOST_LABEL = 12, 26


def render(report: Report) -> str:
    """The whole report in 120 columns, without colours."""
    console = SafeConsole(file=StringIO(), width=_PLAIN_WIDTH, color_system=None)
    with console.capture() as capture:
        print_report(report, console, is_full=True)
    return capture.get()


def files(report: Report) -> Mapping[str, str]:
    """Nothing: Markdown has the same tables."""
    return {}


def print_report(report: Report, console: Console | None = None, *, is_full: bool = False) -> None:
    """Table, verdict and warnings, or everything; on stdout unless a console is given."""
    console = console or report_console()
    results = report.results
    parts: list[RenderableType] = [Text(results.title, style="bold")]
    parts += [Text(results.prompts)] * bool(results.prompts) + [Text()]
    for block in results.blocks:
        parts.extend((_block if is_full else _short_block)(results, block, console.width))
    for table in report.categories if is_full else ():
        parts += [Text(table.title, style="bold"), *draw(table, console.width)]
    parts.append(notes_grid(results.notes if is_full else short_notes(results.notes)))
    print_parts(parts, console)


def report_console() -> Console:
    """A console on stdout."""
    return SafeConsole(plain_width=_PLAIN_WIDTH)


def print_parts(parts: Iterable[RenderableType], console: Console) -> None:
    """Print one part below the other. What the console cannot encode is replaced."""
    if console.encoding.lower().startswith("utf"):
        console.print(Group(*parts))
        return
    with console.capture() as capture:
        console.print(Group(*parts))
    text = capture.get().translate(_PLAIN_SIGNS)
    console.file.write(text.encode(console.encoding, "replace").decode(console.encoding))


def notes_grid(notes: Sequence[Note]) -> RichTable:
    """Notes in two columns: labels and texts."""
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for note in notes:
        style = "yellow" if note.is_warning else "dim"
        table.add_row(Text(note.label, style=style), Text(note.text, style=style))
    return table


def _short_block(results: Results, block: Block, width: int) -> Iterable[RenderableType]:
    tables = [
        sections.screen(results, block, part) for part in (sections.PLUS_MINUS, sections.SPEEDUP)
    ]
    fitting = first_that_fits(tables, width)
    yield Text(f"{fitting.title}, {block.heading}", style="bold")
    if not block.methods or not results.tasks:
        yield Text("Nothing was run.\n")
        return
    yield from draw(fitting, width)
    if any(method.cost.relative_phases for method in block.methods):
        yield from draw(sections.step_costs(results, block), width)
    for table in _served(results, block):
        yield Text(table.title, style="bold")
        yield from draw(table, width)
    yield from _verdicts(results, block)


def _block(results: Results, block: Block, width: int) -> Iterable[RenderableType]:
    yield Text(block.heading, style="bold")
    if not block.methods or not results.tasks:
        yield Text("Nothing was run.\n")
        return
    tables = _main_tables(results, block, width)
    more = (sections.overview(results, block), sections.step_costs(results, block))
    for table in (*tables, *more, *_served(results, block)):
        if not table.columns or not table.groups:
            continue
        if table.title:
            yield Text(table.title, style="bold")
        yield from draw(table, width)
    yield from _verdicts(results, block)


def _served(results: Results, block: Block) -> Iterable[Table]:
    """The tables of servers, if the block has any."""
    tables = (serving_tables.throughput(results, block), serving_tables.latency(results, block))
    return (table for table in tables if table.columns and table.groups)


def _verdicts(results: Results, block: Block) -> Iterable[RenderableType]:
    for run in block.runs:
        yield Text(run.verdict if results.is_one_run else f"{run.label}: {run.verdict}")
    yield Text()


def _main_tables(results: Results, block: Block, width: int) -> list[Table]:
    whole = sections.by_task(results, block, (sections.PLUS_MINUS, sections.MAT))
    if _Layout(whole, width).fits:
        return [whole]
    pairs = sections.by_task(results, block)
    tables = [pairs]
    if not _Layout(pairs, width).fits:
        tables = [
            sections.by_task(results, block, [part]) for part in (sections.SPEEDUP, sections.MAT)
        ]
    return [*tables, sections.intervals(results, block)]


def first_that_fits(tables: Sequence[Table], width: int) -> Table:
    """The first table that has room side by side in this many characters, else the last."""
    return next((table for table in tables if _Layout(table, width).fits), tables[-1])


def draw(table: Table, width: int) -> Iterable[RenderableType]:
    """The table in this many characters, in several parts if it must be, each with a blank line."""
    layout = _Layout(table, width)
    ranks = {column.rank for column in table.columns if column.rank}
    while ranks and not layout.fits:
        highest = max(ranks)
        ranks.remove(highest)
        layout = _Layout(_without(layout.table, highest), width)
    for units in layout.split():
        yield layout.draw(units)
        yield Text()


def _without(table: Table, rank: int) -> Table:
    """The table without its columns of this rank."""
    kept = [column.rank != rank for column in table.columns]
    groups = [
        replace(
            group,
            rows=tuple(replace(r, cells=tuple(compress(r.cells, kept))) for r in group.rows),
        )
        for group in table.groups
    ]
    return replace(table, columns=tuple(compress(table.columns, kept)), groups=tuple(groups))


@dataclass(frozen=True, slots=True)
class _Unit:
    """Columns that stay together: those of one task, or a single one. Widths are in characters."""

    index: int
    heading: Text
    widths: tuple[int, ...]
    width: int

    def cell(self, cells: Sequence[Cell]) -> Text:
        """The texts side by side, each in its width."""
        text = Text()
        for cell, width in zip(cells, self.widths, strict=True):
            style = f"{'bold ' if cell.is_best else ''}{_STYLES.get(cell.tone, '')}".strip()
            text.append(" " if text else "")
            text.append(cell.text.rjust(width), style=style)
        return text


class _Layout:
    """A table in a given width: which columns stand side by side, and how wide they are."""

    def __init__(self, table: Table, width: int) -> None:
        self.table, self._width = table, width
        self._cells = [[cells for _, cells in table.by_task(row.cells)] for row in table.rows]
        self._units = [
            _unit(i, task, columns, rows=[cells[i] for cells in self._cells])
            for i, (task, columns) in enumerate(table.by_task(table.columns))
        ]
        # Labels wrap before columns are cut.
        longest = max(cell_len(text) for text in (table.heading, *map(_label, table.rows)))
        room = width - sum(_GAP + unit.width for unit in self._units)
        self._label_width = min(longest, max(_LEAST_LABEL, min(_MOST_LABEL, room)))

    @property
    def fits(self) -> bool:
        """True if all columns have room side by side, with a clear gap between them."""
        return self._total(_GAP) <= self._width

    def _total(self, gap: int) -> int:
        return self._label_width + sum(gap + unit.width for unit in self._units)

    @property
    def _gap(self) -> int:
        return next((gap for gap in (3, 2, 1) if self._total(gap) <= self._width), _GAP)

    def split(self) -> Iterable[Sequence[_Unit]]:
        """All columns at once if they fit, else as many at a time as do."""
        room = self._width - self._label_width
        pending: list[_Unit] = []
        for unit in self._units:
            if pending and sum(self._gap + each.width for each in (*pending, unit)) > room:
                yield pending
                pending = []
            pending.append(unit)
        yield pending

    def draw(self, units: Sequence[_Unit]) -> RenderableType:
        """The header once, then each group below its label, which may be wider than any column:
        equal widths make one table of the several that this takes.
        """
        is_labelled = any(group.label for group in self.table.groups)
        parts: list[RenderableType] = [self._lines(units, [], is_header=True)] * is_labelled
        rest = list(zip(self.table.rows, self._cells, strict=True))
        for group in self.table.groups:
            own, rest = rest[: len(group.rows)], rest[len(group.rows) :]
            if group.label:
                parts.append(Text(group.label, style="italic"))
            parts.append(self._lines(units, own, is_header=not is_labelled))
        return Group(*parts)

    def _lines(
        self,
        units: Sequence[_Unit],
        rows: Sequence[tuple[Row, list[list[Cell]]]],
        *,
        is_header: bool,
    ) -> RichTable:
        shown = RichTable(
            box=box.SIMPLE_HEAD,
            padding=(0, 0),
            pad_edge=False,
            show_edge=False,
            show_header=is_header,
        )
        shown.add_column(
            self.table.heading, width=self._label_width, overflow="fold", vertical="bottom"
        )
        for unit in units:
            shown.add_column(
                unit.heading,
                justify="right",
                width=self._gap + unit.width - _DIVIDER,
                no_wrap=True,
                vertical="bottom",
            )
        for row, cells in rows:
            label = Text(_label(row), style="bold red" if row.has_failed else "")
            shown.add_row(label, *(unit.cell(cells[unit.index]) for unit in units))
        return shown


def _unit(
    index: int, task: str, columns: Sequence[Column], *, rows: Sequence[Sequence[Cell]]
) -> _Unit:
    headings = [(column.short or column.heading).splitlines() or [""] for column in columns]
    widths = tuple(
        max(map(cell_len, [*heading, *(cells[i].text for cells in rows)]))
        for i, heading in enumerate(headings)
    )
    width = max(sum(widths) + len(widths) - 1, *map(cell_len, _wrap(task, 1)), 0)
    lines = headings[0]
    if task:
        below = " ".join(h.rjust(w) for (h, *_), w in zip(headings, widths, strict=True))
        lines = [*_wrap(task, width), *([below] if below.strip() else [])]
    return _Unit(index, Text("\n".join(lines), justify="right"), widths=widths, width=width)


def _wrap(task: str, width: int) -> list[str]:
    """The title of a task in lines; "-like" may stand on a line of its own."""
    words = task.replace("-like", " -like")
    lines = wrap(words, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(" -like", "-like") for line in lines]


def _label(row: Row) -> str:
    return f"{row.label} ({row.reason})" if row.reason else row.label
