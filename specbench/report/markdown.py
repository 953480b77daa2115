"""A table in Markdown: the paper's form, the intervals, the overview, the notes."""

from collections.abc import Callable, Iterable, Sequence

from specbench.report import costs, formats
from specbench.report.costs import cost_columns
from specbench.report.overview import OVERVIEW
from specbench.report.table import Block, Cell, Row, Table


def to_markdown(table: Table) -> str:
    """The whole table as one Markdown text, best values in bold."""
    lines = [f"# {escape(table.title)}", ""]
    for block in table.blocks:
        lines += [*_block(block, table), ""]
    lines += [f"- **{escape(note.label)}:** {escape(note.text)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _block(block: Block, table: Table) -> Iterable[str]:
    yield f"## {block.heading}"
    yield ""
    titles = [escape(column.title) for column in table.columns]
    header = [f"{title} {name}" for title in titles for name in ("speedup", "MAT")]
    yield from _grouped(block, table, header, _numbers)
    if any(_has_interval(row) for row in block.rows):
        yield from ["", "95 % interval of each speedup:", ""]
        yield from _grouped(block, table, titles, _spans, _has_interval)
    yield from ["", "Over all tasks:" if len(titles) > 1 else "In all:", ""]
    headings = [column.heading.replace("\n", " ") for column in OVERVIEW]
    yield from _grouped(block, table, headings, _overview)
    if columns := cost_columns(block.rows):
        yield from ["", f"{costs.TITLE}:", ""]
        headings = [column.heading.replace("\n", " ") for column in columns]
        yield from _grouped(
            block, table, headings, lambda row: [column.text(row) for column in columns]
        )
    for group in block.groups:
        name = "" if table.is_one_run else f"**{escape(group.label)}:** "
        yield from ["", name + escape(group.verdict)]


def _grouped(
    block: Block,
    table: Table,
    header: Sequence[str],
    texts: Callable[[Row], list[str]],
    is_shown: Callable[[Row], bool] = lambda row: True,
) -> Iterable[str]:
    """One table; where there are several runs, a line with the run's name stands above its rows."""
    rows: list[Sequence[str]] = []
    for group in block.groups:
        if not table.is_one_run:
            rows.append([f"*{escape(group.label)}*", *([""] * len(header))])
        rows += [[escape(row.label), *texts(row)] for row in group.rows if is_shown(row)]
    return _table(["Method", *header], rows)


def _numbers(row: Row) -> list[str]:
    return [text for cell in row.cells for text in (_speedup(cell), _mat(cell))]


def _spans(row: Row) -> list[str]:
    return [formats.span(cell.speedup) for cell in row.cells]


def _has_interval(row: Row) -> bool:
    return any(formats.interval_of(cell.speedup) for cell in row.cells)


def _overview(row: Row) -> list[str]:
    return [column.text(row) for column in OVERVIEW]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| --- |{' ---: |' * (len(header) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _speedup(cell: Cell) -> str:
    if cell.reason:
        return cell.reason
    text = formats.speedup(cell.speedup)
    return f"**{text}**" if cell.is_best_speedup else text


def _mat(cell: Cell) -> str:
    text = formats.mat(cell.mat)
    return f"**{text}**" if cell.is_best_mat else text


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    for sign in "\\|*_`<":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
