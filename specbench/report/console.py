"""A run's progress on stderr: live on a terminal, a line per sample elsewhere, or nothing.

Knows how to draw events. Refuses to know what a run is: everything comes through `Progress`.
Nothing is drawn between two events: a thread that redraws by the clock would disturb the timing.
"""

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from specbench.report.progress import Tally, first_line, sample_line
from specbench.types import Record


class ProgressView:
    """Shows nothing: the quiet view, and the base of the others. A `Progress` in any case.

    As a context manager it ends the view however the run ends.
    """

    def started(self, total: int) -> None: ...
    def sample_started(self, method: str, task: str, sample_id: str) -> None: ...
    def sample_finished(self, record: Record) -> None: ...
    def message(self, text: str) -> None: ...
    def finished(self) -> None: ...

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
        self._print(sample_line(record, self._tally), style="" if record.is_ok else "red")

    def message(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str, style: str = "") -> None:
        """The text as it is, never wrapped; what the stream cannot write is replaced."""
        encoding = self._console.encoding
        shown = text.encode(encoding, "replace").decode(encoding)
        self._console.print(Text(shown, style=style), soft_wrap=True)


class LiveProgress(PlainProgress):
    """The lines of samples, and below them what is running, the totals per method and the bar."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._current = ""
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("samples", total=None)
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
        self._live.refresh()

    def sample_finished(self, record: Record) -> None:
        self._bar.advance(self._task)
        super().sample_finished(record)

    def finished(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("method", no_wrap=True)
        for name in ("done", "tok/s", "MAT", "failed"):
            table.add_column(name, justify="right", no_wrap=True)
        for method, total in self._tally.methods.items():
            speed, mat = total.tokens_per_s, total.mat
            table.add_row(
                Text(method),
                str(total.num_done),
                "" if speed is None else f"{speed:.0f}",
                "" if mat is None else f"{mat:.2f}",
                Text(str(total.num_failed), style="bold red") if total.num_failed else "",
            )
        current = Text(f"now  {self._current}", no_wrap=True, overflow="ellipsis")
        return Group(Text(), table, current, self._bar.get_renderable())


def progress_view(*, is_quiet: bool = False, console: Console | None = None) -> ProgressView:
    """The view that fits: silent when asked to be, live on a terminal, plain lines elsewhere.

    The console is stderr's unless one is given: stdout is for data.
    """
    if is_quiet:
        return ProgressView()
    console = console or Console(stderr=True, highlight=False)
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)
