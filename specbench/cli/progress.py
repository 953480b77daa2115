"""A run's progress on stderr: live on a terminal, one line per sample elsewhere, or nothing.

A terminal gets no line per sample: the result shall stay on one screen.

Draws the events of `Progress` and knows nothing else about a run. Nothing is drawn between two
events: a thread that redraws by the clock would disturb the timing.
"""

import math
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from specbench.errors import first_line
from specbench.measure.progress import Tally, sample_line
from specbench.report.console import SafeConsole
from specbench.types import Record

_REDRAW_S = 0.1
"""Time between two drawings of the live view, at least: each takes milliseconds of the run."""


class ProgressView:
    """A `Progress` that shows nothing: the quiet view, and the base of the others.

    As a context manager it closes the view however the run ends.
    """

    def started(self, total: int) -> None: ...
    def sample_started(self, method: str, task: str, sample_id: str) -> None: ...
    def sample_finished(self, record: Record) -> None: ...
    def message(self, text: str) -> None: ...
    def finished(self) -> None: ...

    def saved(self, run: Path, report: Path) -> None:
        """The folders of the run and of its report."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finished()


class PlainProgress(ProgressView):
    """One line per finished sample and per message."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tally = Tally()

    def started(self, total: int) -> None:
        self._tally = Tally(total)

    def sample_finished(self, record: Record) -> None:
        self._tally.add(record)
        self._show(record)

    def _show(self, record: Record) -> None:
        self._print(sample_line(record, self._tally), style="" if record.is_ok else "red")

    def message(self, text: str) -> None:
        self._print(text)

    def saved(self, run: Path, report: Path) -> None:
        self._print(f"Run: {run}\nReport: {report}/report.html")
        self._print(f"All numbers: specbench report {run} --full")

    def _print(self, text: str, style: str = "") -> None:
        """Print without wrapping; replace what the stream cannot encode."""
        encoding = self._console.encoding
        shown = text.encode(encoding, "replace").decode(encoding)
        self._console.print(Text(shown, style=style), soft_wrap=True)


class LiveProgress(PlainProgress):
    """Totals per method, the current sample and a bar; above them a line per failed sample."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._current, self._drawn = "", -math.inf
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = RichProgress(*columns, console=console, auto_refresh=False)
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
        self._current = first_line(f"{method} on {task}, {sample_id}")
        if perf_counter() - self._drawn >= _REDRAW_S:
            self._live.refresh()
            self._drawn = perf_counter()

    def _show(self, record: Record) -> None:
        self._bar.update(self._task, advance=1, left=self._tally.time_left)
        if not record.is_ok:
            super()._show(record)

    def finished(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("method", no_wrap=True)
        for name in ("done", "tok/s", "MAT", "failed"):
            table.add_column(name, justify="right", no_wrap=True)
        for method, total in self._tally.methods.items():
            speed, mat = total.tokens_per_s, total.mat
            cells = (
                str(total.num_done),
                "" if speed is None else f"{speed:.0f}",
                "" if mat is None else f"{mat:.2f}",
                Text(str(total.num_failed), style="bold red") if total.num_failed else "",
            )
            table.add_row(Text(method), *cells)
        current = Text(f"now  {self._current}", no_wrap=True, overflow="ellipsis")
        return Group(*(Text(), table, current, self._bar.get_renderable()))


def progress_view(*, is_quiet: bool = False, console: Console | None = None) -> ProgressView:
    """The quiet view, the live one on a terminal, or plain lines elsewhere.

    The console is stderr's unless one is given: stdout is for data.
    """
    if is_quiet:
        return ProgressView()
    console = console or SafeConsole(stderr=True)
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)
