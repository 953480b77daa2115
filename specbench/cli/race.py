"""`specbench race`: let methods answer one prompt in the terminal."""

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
from specbench.types import BASELINE

if TYPE_CHECKING:
    from specbench.measure.local.engine_setup import EngineSetup
    from specbench.measure.race import Recording, Written
    from specbench.models.chat import ChatCodec
    from specbench.report.console import TextTable
    from specbench.types import Completion, Request

NOTE = "This demonstration completes one prompt once. To measure, use `specbench run`."
_REDRAW_S = 0.05
"""The shortest time in seconds between two drawings of the view."""
_OTHER_LINES = 4
"""The lines of a terminal that the live text leaves free."""
_REPLAY_S = 6.0
"""The length of a replay in seconds."""
_LEAST_COLUMN = 26
"""The smallest width in characters of a column of a replay."""


@takes(
    *options(SpecValues, "methods", "model", "max_new_tokens", "seed", "device", "threads"),
    *options(SpecValues, "dtype", "weights", "template", "template_args", "settings"),
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
    """Watch methods answer one prompt, one after the other, or side by side with --replay."""
    from specbench.measure.spec import AUTO, RunSpec, starting

    if not prompt.strip():
        raise UserError("The prompt is empty.", 'Give one: specbench race "Tell a story."')
    has_default_methods = "methods" not in values
    values = {"settings": AUTO} | values
    spec = RunSpec(**values, temperatures=(temperature,), is_baseline_run=has_default_methods)
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
    completions = _watch(console, setup, request, is_replayed=replay)
    console.print(_results(completions), Text(NOTE, style="dim"), sep="\n")


def _watch(
    console: Console, setup: EngineSetup, request: Request, *, is_replayed: bool
) -> Mapping[str, Completion]:
    """Show the answers while they are written, or afterwards. Return the completions by label."""
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
    """The current answer, redrawn at most 20 times per second. Finished answers stay above it."""

    def __init__(self, console: Console, codec: ChatCodec) -> None:
        super().__init__(console=console, auto_refresh=False, transient=True)
        self._codec = codec
        self._drawn_at = 0.0

    def draw(self, label: str, written: Written) -> None:
        if not self.console.is_terminal or perf_counter() - self._drawn_at < _REDRAW_S:
            return
        lines = self._text(written).wrap(self.console, self.console.width)
        tail = lines[-max(1, self.console.height - _OTHER_LINES) :]
        self.update(Group(_heading(label, written), *tail), refresh=True)
        self._drawn_at = perf_counter()

    def replay(self, recording: Recording) -> None:
        """Replay all methods side by side, and leave the end of each answer on the screen."""
        from specbench.measure.race import Written

        longest_s = max((answer.wall_s for answer in recording.done.values()), default=0.0)
        pace = longest_s / _REPLAY_S or 1.0  # recorded seconds per second of the replay
        # what each method has written up to the present moment of the replay
        latest: dict[str, Written | Completion] = {label: Written() for label in recording.done}
        began_s = perf_counter()
        events = recording.timeline() if self.console.is_terminal else []
        for recorded_s, label, written in events:
            sleep(max(0.0, began_s + recorded_s / pace - perf_counter()))
            latest[label] = written
            if perf_counter() - self._drawn_at >= _REDRAW_S:
                self.update(self._side_by_side(latest), refresh=True)
                self._drawn_at = perf_counter()
        self.update(Text(), refresh=True)
        self.stop()
        pace_text = f"{pace:.3g} times" if pace >= 1 else f"1/{1 / pace:.2g} of"
        self.console.print(
            self._side_by_side(recording.done),
            Text(f"Shown at {pace_text} their speed.\n", "dim"),
        )

    def _side_by_side(self, latest: Mapping[str, Written | Completion]) -> RenderableType:
        """Draw the end of each answer in a column of its own, in several rows if there are many."""
        num_columns = max(1, min(len(latest), self.console.width // _LEAST_COLUMN))
        num_rows = -(-len(latest) // num_columns)
        width = self.console.width // num_columns - 2
        # Besides the text, a cell has lines for name, settings and counts, and a blank line.
        num_lines = max(1, (self.console.height - _OTHER_LINES) // num_rows - 4)
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(num_columns):
            table.add_column(width=width, no_wrap=True, overflow="ellipsis")
        cells = []
        for label, written in latest.items():
            lines = self._text(written).wrap(self.console, width)[-num_lines:]
            num_blank = num_lines - len(lines) if self.is_started else 0  # keeps the height
            name, bracket, settings = label.partition(" (")
            settings_line = f"({settings}" if bracket else ""
            heading = Text(name, "bold"), Text(settings_line, "dim"), Text(_counts(written), "dim")
            cells.append(Group(*heading, *lines, *[Text()] * num_blank, Text()))
        for start in range(0, len(cells), num_columns):
            table.add_row(*cells[start : start + num_columns])
        return table

    def finish(self, label: str, written: Written | Completion) -> None:
        self.update(Text(), refresh=True)
        self.console.print(_heading(label, written), self._text(written), sep="\n", end="\n\n")

    def _text(self, written: Written | Completion) -> Text:
        """Return the text so far, with accepted draft tokens in green."""
        from specbench.measure.requests import token_ends
        from specbench.report.answers import step_ends

        if not written.token_ids:
            return Text()
        answer = self._codec.text(written.token_ids)
        ends = token_ends(self._codec, written.token_ids, answer)
        shown = Text()
        start = 0
        # the characters at which a step's accepted draft tokens and all its tokens end
        for accepted_end, end in step_ends(ends, written.accept_lengths):
            shown.append(answer[start:accepted_end], "green")
            shown.append(answer[max(start, accepted_end) : end])
            start = end
        return shown


def _heading(label: str, written: Written | Completion) -> Text:
    return Text.assemble((label, "bold"), "  ", (_counts(written), "dim"))


def _counts(written: Written | Completion) -> str:
    return f"{len(written.token_ids)} tokens in {len(written.accept_lengths)} steps"


def _results(completions: Mapping[str, Completion]) -> TextTable:
    """Return the speed and accepted tokens of each method, and its speedup over the first.

    The first method is vanilla, if it ran.
    """
    from specbench.report.console import text_table

    tokens_per_s = {
        label: completion.num_tokens / completion.wall_s
        for label, completion in completions.items()
    }
    baseline = next(iter(completions), "")
    rows = []
    for label, completion in completions.items():
        num_steps = len(completion.steps)
        mat = f"{sum(completion.accept_lengths) / num_steps:.2f}" if num_steps else "-"
        speedup = tokens_per_s[label] / tokens_per_s[baseline]
        rows.append([label, f"{tokens_per_s[label]:.1f}", f"{speedup:.2f}x", str(num_steps), mat])
    speedup_heading = "speedup" if baseline == BASELINE else f"speedup over {baseline}"
    headings = ["method", "tokens/s", speedup_heading, "steps", "MAT"]
    return text_table(headings, rows, are_numbers=True)
