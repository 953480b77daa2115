"""A table in Markdown: the paper's form, the intervals, the overview, the notes."""

from collections.abc import Iterable, Sequence

from specbench.analysis.metrics import BASELINE
from specbench.report import formats
from specbench.report.overview import OVERVIEW
from specbench.report.table import Block, Cell, Row, Table


def to_markdown(table: Table) -> str:
    """The whole table as one Markdown text, best values in bold."""
    lines = [f"# {_escape(table.title)}", ""]
    for block in table.blocks:
        lines += [*_block(block, table), ""]
    lines += [f"- **{_escape(note.label)}:** {_escape(note.text)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _block(block: Block, table: Table) -> Iterable[str]:
    titles = [_escape(column.title) for column in table.columns]
    yield f"## {block.heading}" + ("" if table.is_one_model else f", {_escape(block.model)}")
    yield ""
    header = [f"{title} {name}" for title in titles for name in ("speedup", "MAT")]
    rows = [
        [_label(row), *(text for cell in row.cells for text in (_speedup(cell), _mat(cell)))]
        for row in block.rows
    ]
    yield from _table(["Method", *header], rows)
    spans = [
        [_label(row), *(formats.span(cell.speedup) for cell in row.cells)]
        for row in block.rows
        if row.method != BASELINE and not row.reason
    ]
    if any(text != formats.NONE for span in spans for text in span[1:]):
        yield from ["", "95 % interval of each speedup:", ""]
        yield from _table(["Method", *titles], spans)
    yield from ["", "Over all tasks:" if len(titles) > 1 else "In all:", ""]
    yield from _overview(block.rows)
    yield from ["", _escape(block.verdict)]


def _overview(rows: Sequence[Row]) -> Iterable[str]:
    header = [column.heading.replace("\n", " ") for column in OVERVIEW]
    lines = [[_label(row), *(column.text(row) for column in OVERVIEW)] for row in rows]
    return _table(["Method", *header], lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| --- |{' ---: |' * (len(header) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _label(row: Row) -> str:
    return _escape(row.label)


def _speedup(cell: Cell) -> str:
    if cell.reason:
        return cell.reason
    text = formats.speedup(cell.speedup)
    return f"**{text}**" if cell.is_best_speedup else text


def _mat(cell: Cell) -> str:
    text = formats.mat(cell.mat)
    return f"**{text}**" if cell.is_best_mat else text


def _escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    for sign in "\\|*_`<":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
