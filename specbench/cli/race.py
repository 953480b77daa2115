"""`specbench race`: methods answer one prompt in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specbench.cli.options import Call, quiet_libraries, say, takes
from specbench.errors import UserError
from specbench.log.options import options
from specbench.log.spec import SpecValues

if TYPE_CHECKING:
    from specbench.measure.local.engine_setup import EngineSetup
    from specbench.measure.race import Recording, Written
    from specbench.models.chat import ChatCodec
    from specbench.report.console import TextTable
    from specbench.types import Completion, Request

NOTE = "One prompt, once: a demonstration. `specbench run` measures."
_REDRAW_S = 0.05
_OTHER_LINES = 4
"""Lines of a terminal that the live text leaves free."""
_REPLAY_S, _LEAST_COLUMN = 6.0, 26
"""Seconds of a replay, and the least characters of its columns."""


@takes(
    *options(SpecValues, "methods", "model", "max_new_tokens", "seed", "device", "threads"),
    *options(SpecValues, "dtype", "weights", "template", "settings"),
    *options(Call, "offline"),
)
def race(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt, put into the chat template.")
    ],
    values: dict[str, Any],
    call: Call,
    temperature: Annotated[float, typer.Option(metavar="T", help="0 is greedy.")] = 0.0,
    replay: Annotated[
        bool, typer.Option("--replay", help="Show the answers side by side afterwards.")
    ] = False,
) -> None:
    """Watch methods answer one prompt, one after the other, then side by side."""
    from specbench.measure.spec import AUTO, RunSpec, starting

    if not prompt.strip():
        raise UserError("The prompt is empty.", 'Give one: specbench race "Tell a story."')
    is_every_one = "methods" not in values
    values = {"settings": AUTO} | values
    spec = RunSpec(**values, temperatures=(temperature,), is_baseline_run=is_every_one)
    say(starting(spec, has_tasks=False))
    from specbench.measure.plan import check_early, new_tokens

    check_early(spec)
    quiet_libraries()
    from specbench.measure.local.engine_setup import make_engine_setup
    from specbench.measure.requests import user
    from specbench.report.console import SafeConsole
    from specbench.types import Request

    setup = make_engine_setup(spec, is_offline=call.offline)
    codec = setup.codec
    request = Request(
        codec.render([user(prompt)]),
        new_tokens(spec),
        sampling=spec.sampling(temperature),
        eos_ids=codec.eos_ids,
        seed=spec.seed,
    )
    say(f"Loading {setup.title} …")
    console = SafeConsole()
    done = _watch(console, setup, request, is_replayed=replay)
    console.print(_results(done), Text(NOTE, style="dim"), sep="\n")


def _watch(
    console: Console, setup: EngineSetup, request: Request, *, is_replayed: bool
) -> Mapping[str, Completion]:
    """Show the answers while they are written, or all of them afterwards. Completions by label."""
    from specbench.measure.race import Recording, race

    recording = Recording()
    with _View(console, setup.codec) as view:
        watch = recording.watch if is_replayed else view.draw
        for label, completion in race(setup, request, watch):
            recording.done[label] = completion
            if is_replayed:
                say(f"{label} is done.")
            else:
                view.finish(label, completion)
        if is_replayed:
            view.replay(recording)
    return recording.done


class _View(Live):
    """The answer under way, redrawn at most 20 times a second; finished ones stay above it."""

    def __init__(self, console: Console, codec: ChatCodec) -> None:
        super().__init__(console=console, auto_refresh=False, transient=True)
        self._codec, self._drawn = codec, 0.0

    def draw(self, label: str, written: Written) -> None:
        if not self.console.is_terminal or perf_counter() - self._drawn < _REDRAW_S:
            return
        text = self._text(written)
        lines = text.wrap(self.console, self.console.width)
        tail = lines[-max(1, self.console.height - _OTHER_LINES) :]
        self.update(Group(_heading(label, written), *tail), refresh=True)
        self._drawn = perf_counter()

    def replay(self, recording: Recording) -> None:
        """Show all methods beside each other as they wrote, and leave the end of each answer."""
        from specbench.measure.race import Written

        longest = max((one.wall_s for one in recording.done.values()), default=0.0)
        pace = longest / _REPLAY_S or 1.0
        latest: dict[str, Written | Completion] = {label: Written() for label in recording.done}
        began = perf_counter()
        for seconds, label, written in recording.timeline() if self.console.is_terminal else ():
            sleep(max(0.0, began + seconds / pace - perf_counter()))
            latest[label] = written
            if perf_counter() - self._drawn >= _REDRAW_S:
                self.update(self._beside(latest), refresh=True)
                self._drawn = perf_counter()
        self.update(Text(), refresh=True)
        self.stop()
        times = f"{pace:.3g} times" if pace >= 1 else f"1/{1 / pace:.2g} of"
        self.console.print(
            self._beside(recording.done), Text(f"Shown at {times} their speed.\n", "dim")
        )

    def _beside(self, latest: Mapping[str, Written | Completion]) -> RenderableType:
        """The end of each answer in a column of its own, in several rows if there are many."""
        width = self.console.width
        num = max(1, min(len(latest), width // _LEAST_COLUMN))
        room = max(1, (self.console.height - _OTHER_LINES) // -(-len(latest) // num) - 4)
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(num):
            table.add_column(width=width // num - 2, no_wrap=True, overflow="ellipsis")
        cells = []
        for label, written in latest.items():
            lines = self._text(written).wrap(self.console, width // num - 2)[-room:]
            name, mark, settings = label.partition(" (")
            counts = [Text(f"({settings}" * bool(mark), "dim"), Text(_counts(written), "dim")]
            fill = [Text()] * (room - len(lines)) * self.is_started  # so that it stands still
            cells.append(Group(Text(name, "bold"), *counts, *lines, *fill, Text()))
        for start in range(0, len(cells), num):
            table.add_row(*cells[start : start + num])
        return table

    def finish(self, label: str, written: Written | Completion) -> None:
        self.update(Text(), refresh=True)
        self.console.print(_heading(label, written), self._text(written), sep="\n", end="\n\n")

    def _text(self, written: Written | Completion) -> Text:
        """The text with accepted draft tokens in green."""
        from specbench.measure.requests import token_ends
        from specbench.report.answers import step_ends

        if not written.token_ids:
            return Text()
        text = self._codec.text(written.token_ids)
        ends = token_ends(self._codec, written.token_ids, text)
        shown, start = Text(), 0
        for kept, end in step_ends(ends, written.accept_lengths):
            shown.append(text[start:kept], "green")
            shown.append(text[max(start, kept) : end])
            start = end
        return shown


def _heading(label: str, written: Written | Completion) -> Text:
    return Text.assemble((label, "bold"), "  ", (_counts(written), "dim"))


def _counts(written: Written | Completion) -> str:
    return f"{len(written.token_ids)} tokens in {len(written.accept_lengths)} steps"


def _results(done: Mapping[str, Completion]) -> TextTable:
    """Speed and accepted tokens of each method, and its speedup over the first: vanilla, if it
    ran.
    """
    from specbench.report.console import text_table

    rows, first = [], None
    for label, completion in done.items():
        rate, steps = completion.num_tokens / completion.wall_s, len(completion.steps)
        first = first or rate
        mat = f"{sum(completion.accept_lengths) / steps:.2f}" if steps else "-"
        rows.append([label, f"{rate:.1f}", f"{rate / first:.2f}x", str(steps), mat])
    base = next(iter(done), "")
    speedup = "speedup" if base == "vanilla" else f"speedup over {base}"
    headings = ["method", "tokens/s", speedup, "steps", "MAT"]
    return text_table(headings, rows, are_numbers=True)
