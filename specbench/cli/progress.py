"""Show a run's progress on stderr: live on a terminal, elsewhere a line per sample, or nothing.

A terminal gets no line per sample, so that the result stays on one screen. The view is redrawn only
at events of the run, because a thread that redraws regularly would disturb the timing.
"""

import math
import sys
from collections.abc import Iterable
from time import perf_counter
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from specbench.errors import first_line, is_debugging, terminal_text
from specbench.measure.progress import Lines, Progress, sample_line
from specbench.report.console import SafeConsole, wrapped
from specbench.types import Record

_OTHER_LINES = 6
"""Number of lines in the live view besides the rows of methods, the cursor's line included."""
_REDRAW_S = 0.1
"""The shortest time between two drawings of the live view. Each delays the run by milliseconds."""


def _say_in_debug(message: str) -> None:
    if is_debugging():
        print(terminal_text(message), file=sys.stderr)


class ProgressView(Progress):
    """The quiet view, which shows messages only with --debug. It is the base of the others.

    As a context manager, it closes the view however the run ends.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.finished()


class PlainProgress(Lines, ProgressView):
    """A line for each finished sample and each message."""

    def __init__(self, console: Console) -> None:
        super().__init__(self._print)
        self._console = console

    def _show(self, record: Record) -> None:
        self._print(sample_line(record, self._tally), style="" if record.is_ok else "red")

    def _print(self, message: str, style: str = "") -> None:
        lines = wrapped(message, self._console.file)
        self._console.print(Text(lines, style=style), soft_wrap=True)


class LiveProgress(PlainProgress):
    """The totals of methods, the current sample and a bar. Failed samples have lines above them."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._current = ""
        self._drawn_at = -math.inf
        columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "{task.fields[left]}"
        self._bar = RichProgress("samples", *columns, console=console, auto_refresh=False)
        self._task = self._bar.add_task("samples", total=None, left="")
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            get_renderable=self._render,
        )

    def started(self, total: int) -> None:
        super().started(total)
        self._bar.reset(self._task, total=total)
        self._live.start(refresh=True)

    def sample_started(self, method: str, task: str, sample_id: str) -> None:
        label = _short(method, self._tally.methods)
        self._current = first_line(f"{label} on {task}, {sample_id}")
        if perf_counter() - self._drawn_at >= _REDRAW_S:
            self._live.refresh()
            self._drawn_at = perf_counter()

    def _show(self, record: Record) -> None:
        self._bar.update(self._task, advance=1, left=self._tally.time_left)
        if not record.is_ok:
            super()._show(record)

    def finished(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        """Draw the bar and the current sample, then as many of the fastest methods as fit."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("method", no_wrap=True, overflow="ellipsis")
        for name in ("done", "tok/s", "MAT", "failed"):
            table.add_column(name, justify="right", no_wrap=True)
        totals = self._tally.methods
        room = max(1, self._console.height - _OTHER_LINES)
        fastest = sorted(totals, key=lambda name: totals[name].tokens_per_s or 0.0, reverse=True)
        for method in fastest[:room]:
            total = totals[method]
            speed = total.tokens_per_s
            mat = total.mat
            table.add_row(
                Text(_short(method, totals)),
                str(total.num_done),
                "" if speed is None else f"{speed:.0f}",
                "" if mat is None else f"{mat:.2f}",
                Text(str(total.num_failed), style="bold red") if total.num_failed else "",
            )
        current = Text(f"now  {self._current}", no_wrap=True, overflow="ellipsis")
        num_left_out = len(totals) - room
        last_lines = []
        if num_left_out > 0:
            last_lines.append(Text(f"and {num_left_out} slower", style="dim"))
        return Group(self._bar.get_renderable(), current, Text(), table, *last_lines)


def _short(method: str, methods: Iterable[str]) -> str:
    """Return a method's label with only the options that distinguish it from its other variants."""
    name = method.partition(":")[0]
    variants = tuple(
        other for other in methods if other != method and other.partition(":")[0] == name
    )
    from specbench.log.methods import MethodLabel

    return MethodLabel(method, name, others=variants).label


def progress_view(*, is_quiet: bool = False, console: Console | None = None) -> ProgressView:
    """Return the quiet view, the live view for a terminal, or plain lines.

    Without `console`, the output goes to stderr, since stdout is for data.
    """
    if is_quiet:
        return ProgressView(_say_in_debug)
    console = console or SafeConsole(stderr=True)
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)
