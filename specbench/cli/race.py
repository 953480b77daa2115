"""`specbench race`: methods answer one prompt in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specbench.cli.options import Call, quiet_libraries, say, takes
from specbench.log.options import options
from specbench.log.spec import SpecValues

if TYPE_CHECKING:
    from specbench.measure.base import Codec
    from specbench.measure.local.engine_setup import EngineSetup
    from specbench.measure.race import Recording, Written
    from specbench.types import Completion, Request

NOTE = "One prompt, once: a demonstration. `specbench run` measures."
_REDRAW_S = 0.05
_OTHER_LINES = 4
"""Lines of a terminal that the live text leaves free."""


@takes(
    *options(SpecValues, "methods", "model", "max_new_tokens", "seed", "device", "threads"),
    *options(SpecValues, "dtype", "weights", "template"),
    *options(Call, "offline"),
)
def race(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt, put into the chat template.")
    ],
    values: dict[str, Any],
    call: Call,
    temperature: Annotated[float, typer.Option(metavar="T", help="0 is greedy.")] = 0.0,
    in_turns: Annotated[
        bool,
        typer.Option(
            "--in-turns", help="Show the answers side by side afterwards, at the speed they had."
        ),
    ] = False,
) -> None:
    """Watch methods answer one prompt, one after the other or side by side."""
    from specbench.measure.preflight import check_names, starting
    from specbench.measure.spec import RunSpec

    is_every_one = "methods" not in values
    spec = RunSpec(**values, temperatures=(temperature,), is_baseline_run=is_every_one)
    say(starting(spec))
    check_names(spec)
    quiet_libraries()
    from specbench.measure.local.engine_setup import make_engine_setup
    from specbench.measure.requests import user
    from specbench.report.console import SafeConsole
    from specbench.types import Request

    setup = make_engine_setup(spec, is_offline=call.offline)
    codec = setup.codec
    request = Request(
        codec.render([user(prompt)]),
        spec.max_new_tokens or setup.default_budget,
        sampling=spec.sampling(temperature),
        eos_ids=codec.eos_ids,
        seed=spec.seed,
    )
    say(f"Loading {setup.title} …")
    console = SafeConsole()
    done = _watch(console, setup, request, in_turns=in_turns)
    console.print(_results(done), Text(NOTE, style="dim"), sep="\n")


def _watch(
    console: Console, setup: EngineSetup, request: Request, *, in_turns: bool
) -> Mapping[str, Completion]:
    """Show the answers while they are written, or all of them afterwards. Completions by label."""
    from specbench.measure.race import Recording, Written, race

    recording = Recording()
    with _View(console, setup.codec) as view:
        for label, completion in race(setup, request, recording.watch if in_turns else view.draw):
            recording.done[label] = completion
            if not in_turns:
                view.finish(label, Written(completion.token_ids, completion.accept_lengths))
        if in_turns:
            view.replay(recording)
    return recording.done


class _View:
    """The answer under way, redrawn at most 20 times a second; finished ones stay above it."""

    def __init__(self, console: Console, codec: Codec) -> None:
        self._console, self._codec = console, codec
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def __enter__(self) -> _View:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def draw(self, label: str, written: Written) -> None:
        if not self._live.is_started or perf_counter() - self._drawn < _REDRAW_S:
            return
        text = self._text(written)
        lines = text.wrap(self._console, self._console.width)
        tail = lines[-max(1, self._console.height - _OTHER_LINES) :]
        self._live.update(Group(_heading(label, written), *tail), refresh=True)
        self._drawn = perf_counter()

    def replay(self, recording: Recording) -> None:
        """Show all methods below each other as they wrote, then the whole answers."""
        from specbench.measure.race import Written

        latest = {label: Written((), ()) for label in recording.done}
        began = perf_counter()
        for seconds, label, written in recording.timeline() if self._live.is_started else ():
            sleep(max(0.0, began + seconds - perf_counter()))
            latest[label] = written
            if perf_counter() - self._drawn >= _REDRAW_S:
                self._live.update(Group(*self._all(latest)), refresh=True)
                self._drawn = perf_counter()
        for label, one in recording.done.items():
            self.finish(label, Written(one.token_ids, one.accept_lengths))

    def _all(self, latest: Mapping[str, Written]) -> Iterator[Text]:
        """The end of each answer, with the same number of lines for all."""
        room = max(1, (self._console.height - _OTHER_LINES) // len(latest) - 1)
        for label, written in latest.items():
            lines = self._text(written).wrap(self._console, self._console.width)
            yield _heading(label, written)
            yield from [*lines[-room:], *[Text()] * max(0, room - len(lines))]

    def finish(self, label: str, written: Written) -> None:
        if self._live.is_started:
            self._live.update(Text(), refresh=True)
        self._console.print(_heading(label, written), self._text(written), sep="\n", end="\n\n")

    def _text(self, written: Written) -> Text:
        """The text with accepted draft tokens in green; what cannot be encoded is replaced."""
        from specbench.report.answers import step_ends

        if not written.token_ids:
            return Text()
        text, ends = written.text(self._codec)
        encoding = self._console.encoding
        shown, start = Text(), 0
        for kept, end in step_ends(ends, written.accept_lengths):
            for piece, style in ((text[start:kept], "green"), (text[max(start, kept) : end], "")):
                shown.append(piece.encode(encoding, "replace").decode(encoding), style)
            start = end
        return shown


def _heading(label: str, written: Written) -> Text:
    counts = f"{len(written.token_ids)} tokens in {len(written.accept_lengths)} steps"
    return Text.assemble((label, "bold"), "  ", (counts, "dim"))


def _results(done: Mapping[str, Completion]) -> Table:
    """Speed and accepted tokens of each method, and its speedup over the first."""
    from specbench.report.console import text_table

    rows, first = [], None
    for label, completion in done.items():
        rate, steps = completion.num_tokens / completion.wall_s, len(completion.steps)
        first = first or rate
        mat = f"{sum(completion.accept_lengths) / steps:.2f}" if steps else "-"
        rows.append([label, f"{rate:.1f}", f"{rate / first:.2f}x", str(steps), mat])
    headings = ["method", "tokens/s", "times the first", "steps", "MAT"]
    return text_table(headings, rows, are_numbers=True)
