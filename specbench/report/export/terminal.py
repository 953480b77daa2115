"""A report on a terminal, at whatever width there is: what does not fit continues below."""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from specbench.report import sections
from specbench.report.console import Prose, SafeConsole
from specbench.report.layout import draw, first_in_full
from specbench.report.notes import short_notes
from specbench.report.results import Block, Report
from specbench.report.table import Table
from specbench.report.texts import Note, note

_PLAIN_WIDTH = 120
"""Columns of a file or a pipe."""


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
    parts: list[RenderableType] = [Text(report.title, style="bold")]
    parts += [Text(report.prompts)] * bool(report.prompts) + [Text()]
    for block in report.blocks:
        if block.methods and report.tasks:
            parts += (_block if is_full else _short_block)(report, block, console.width)
        else:
            parts.append(Text(f"{block.heading}: nothing was run.\n"))
    parts += _titled(sections.by_category(report) if is_full else (), console.width)
    told = report.notes if is_full else short_notes(report.notes)
    if not any(sections.has_speedup(block) for block in report.blocks):
        told = tuple(one for one in told if one.key != "short_speedup")
    elif console.color_system:
        told = (note("short_colours"), *told)
    parts.append(notes_grid(told))
    print_parts(parts, console)


def report_console() -> Console:
    """A console on stdout."""
    return SafeConsole(plain_width=_PLAIN_WIDTH)


def print_parts(parts: Iterable[RenderableType], console: Console) -> None:
    """Print one part below the other."""
    made = (Prose(one.plain, str(one.style)) if isinstance(one, Text) else one for one in parts)
    console.print(Group(*made), crop=False)


def notes_grid(notes: Sequence[Note]) -> Group:
    """Notes in two columns: labels and texts."""
    indent = max((len(one.label) + 2 for one in notes), default=0)
    styles = ("yellow" if one.is_warning else "dim" for one in notes)
    lines = zip(notes, styles, strict=True)
    return Group(*(Prose(one.text, style, one.label, indent) for one, style in lines))


def _short_block(report: Report, block: Block, width: int) -> Iterable[RenderableType]:
    parts = (sections.ON_SCREEN, sections.SPEEDUP)
    screens = [sections.screen(report, block, part) for part in parts]
    fitting = first_in_full(screens, width)
    num_more = len(screens[0].columns) - len(fitting.columns)
    more = f" ({num_more} more task{'s' * (num_more > 1)}: --full)" if num_more else ""
    yield Text(f"{fitting.title}, {block.heading}{more}", style="bold")
    yield from draw(fitting, width)
    if any(method.cost.relative_phases for method in block.methods):
        yield from draw(sections.step_costs(report, block), width)
    if sections.served(block).methods:
        tables = [sections.throughput(report, block), sections.latency(report, block)]
        yield from _titled([table for table in tables if table.columns], width)
    yield from _verdicts(report, block)


def _block(report: Report, block: Block, width: int) -> Iterable[RenderableType]:
    yield Text(block.heading, style="bold")
    main = sections.by_task(report, block, (sections.ON_SCREEN, sections.MAT))
    yield from _titled(sections.tables(report, block, main), width)
    yield from _verdicts(report, block)


def _titled(tables: Iterable[Table], width: int) -> Iterable[RenderableType]:
    """Tables below their titles, if they have any."""
    for table in tables:
        if table.title:
            yield Text(table.title, style="bold")
        yield from draw(table, width)


def _verdicts(report: Report, block: Block) -> Iterable[RenderableType]:
    for run in block.runs:
        yield Text(run.verdict if report.is_one_run else f"{run.source.label}: {run.verdict}")
    yield Text()
