"""Print a report on a terminal of any width. Columns that do not fit continue below."""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from specbench.report import sections, task_tables
from specbench.report.console import Prose, SafeConsole
from specbench.report.layout import draw, first_in_full
from specbench.report.notes import short_notes
from specbench.report.results import Block, Report
from specbench.report.step_costs import step_costs
from specbench.report.table import Table
from specbench.report.texts import Note, make_note

_PLAIN_WIDTH = 120
"""The width in characters of a report in a file or a pipe."""


def render(report: Report) -> str:
    """Return the report as text, 120 characters wide and without colours."""
    console = SafeConsole(file=StringIO(), width=_PLAIN_WIDTH, color_system=None)
    with console.capture() as capture:
        print_report(report, console, is_full=True)
    return capture.get()


def files(report: Report) -> Mapping[str, str]:
    """Return no files, because the Markdown file has the same tables."""
    return {}


def print_report(report: Report, console: Console | None = None, *, is_full: bool = False) -> None:
    """Print a report on the console, or on stdout without one.

    The full report (`is_full`) has all tables and notes. The short report has the main table,
    verdicts and a few notes. It also has throughput and latency for servers, and the costs of steps
    if their phases were timed.
    """
    console = console or report_console()
    width = console.width  # in characters
    renderables: list[RenderableType] = [Text(report.title, style="bold")]
    if report.prompts:  # the number of prompts from each source, or ""
        renderables.append(Text(report.prompts))
    if report.load_notes:  # for servers, which method is best at each load
        renderables += [Text(), notes_grid(report.load_notes)]
    renderables.append(Text())  # an empty line
    for block in report.blocks:  # the results at each temperature
        if not block.methods or not report.tasks:
            renderables.append(Text(f"{block.heading}: nothing was run.\n"))
        elif is_full:
            renderables += _block(report, block, width)
        else:
            renderables += _short_block(report, block, width)
    if is_full:
        # The tables by category, if the prompts have categories.
        renderables += _titled(task_tables.by_category(report), width)
    renderables.append(notes_grid(_shown_notes(report, console, is_full=is_full)))
    print_parts(renderables, console)


def _shown_notes(report: Report, console: Console, *, is_full: bool) -> Sequence[Note]:
    """Return the notes below the tables. Notes about speedups and colours need a speedup."""
    notes = report.later_notes if is_full else short_notes(report.later_notes)
    if not any(map(sections.has_speedup, report.blocks)):
        return [note for note in notes if note.key != "short_speedup"]
    if console.color_system and not report.is_one_pass:  # colours need a second pass
        return [make_note("short_colours"), *notes]
    return notes


def report_console() -> Console:
    """Return a console on stdout."""
    return SafeConsole(plain_width=_PLAIN_WIDTH)


def print_parts(parts: Iterable[RenderableType], console: Console) -> None:
    """Print the parts one below the other."""
    wrapping = [
        Prose(part.plain, str(part.style)) if isinstance(part, Text) else part for part in parts
    ]
    console.print(Group(*wrapping), crop=False)


def notes_grid(notes: Sequence[Note]) -> Group:
    """Return the notes in two columns with labels and texts."""
    indent = max((len(note.label) + 2 for note in notes), default=0)
    lines = []
    for note in notes:
        style = "yellow" if note.is_warning else "dim"
        lines.append(Prose(note.text, style, label=note.label, indent=indent))
    return Group(*lines)


def _short_block(report: Report, block: Block, width: int) -> Iterable[RenderableType]:
    """Yield the parts of the short report for one temperature in `width` characters.

    The main table has a row per method, and columns over all tasks and for each task. It has
    intervals if there is room. If there is no room even without intervals, some tasks are left out.
    `block` has the results at the temperature.
    """
    forms = [  # the main table with intervals of speedups, and without
        sections.screen(report, block, task_tables.on_screen(report, block)),
        sections.screen(report, block, task_tables.SPEEDUP),
    ]
    # The first form that fits, or else the last form without some columns.
    main_table = first_in_full(forms, width)
    title = f"{main_table.title}, {block.heading}"
    if num_hidden := _num_tasks(forms[0]) - _num_tasks(main_table):
        hidden_text = "1 more task" if num_hidden == 1 else f"{num_hidden} more tasks"
        title += f" ({hidden_text}: --full)"
    # Throughput and latency, in this order. Without servers, there are no tables.
    server_tables = [table for table in _server_tables(report, block) if table.columns]
    # At load, throughput is above the main table.
    num_above = 1 if sections.is_loaded(block) else 0
    yield from _titled(server_tables[:num_above], width)
    yield Text(title, style="bold")
    yield from draw(main_table, width)
    # A step's times (draft, verify, commit, host) / vanilla's step, or None.
    if any(method.cost.relative_phases for method in block.methods):
        yield from draw(step_costs(report, block), width)
    yield from _titled(server_tables[num_above:], width)
    yield from _verdicts(report, block)  # which method of each run is the fastest, and advice


def _num_tasks(table: Table) -> int:
    """Return the number of columns that belong to a task."""
    return sum(bool(column.task) for column in table.columns)


def _server_tables(report: Report, block: Block) -> tuple[Table, ...]:
    """Return the tables of throughput and latency, if methods ran on servers."""
    if not sections.served(block).methods:
        return ()
    return sections.throughput(report, block), sections.latency(report, block)


def _block(report: Report, block: Block, width: int) -> Iterable[RenderableType]:
    yield Text(block.heading, style="bold")
    main = task_tables.by_task(
        report, block, (task_tables.on_screen(report, block), task_tables.MAT)
    )
    yield from _titled(sections.tables(report, block, main), width)
    yield from _verdicts(report, block)


def _titled(tables: Iterable[Table], width: int) -> Iterable[RenderableType]:
    """Yield the tables, each below its title if it has one."""
    for table in tables:
        if table.title:
            yield Text(table.title, style="bold")
        yield from draw(table, width)


def _verdicts(report: Report, block: Block) -> Iterable[RenderableType]:
    """Yield the verdict of each run, the recommendations and an empty line."""
    for run in block.runs:
        yield Text(run.verdict if report.is_one_run else f"{run.source.label}: {run.verdict}")
    for recommendation in block.recommendations:
        yield Text(recommendation, style="bold")
    yield Text()
