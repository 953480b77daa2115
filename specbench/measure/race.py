"""One prompt, completed by one method after the other while somebody watches.

The time that watching takes is subtracted from the method's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from specbench.measure.local.engine import EngineBackend
from specbench.types import Completion, Request

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter, State
    from specbench.measure.local.engine_setup import EngineSetup


class Written(NamedTuple):
    """The tokens of an answer so far, and the tokens emitted per step."""

    token_ids: tuple[int, ...] = ()
    accept_lengths: tuple[int, ...] = ()


Watch = Callable[[str, Written], None]
"""Receives a method's label and its answer so far, after the prefill and after each step."""


def race(setup: EngineSetup, request: Request, watch: Watch) -> Iterator[tuple[str, Completion]]:
    """Complete a request with each method of a setup in turn, and yield each completion.

    A completion comes with its method's label, which has the settings in parentheses if they were
    chosen for this machine. `watch` is called with that label and the tokens so far after every
    step; the seconds that it takes are not part of `decode_s`.
    """
    with EngineBackend(setup) as backend:
        backend.warm_up([request])
        # Headers, by label, of the methods whose settings were chosen here. `settings_text` is a
        # text such as "6 tokens; paper: 10"; it is empty for the paper's settings.
        tuned_methods = backend.describe().methods
        drafters: dict[str, _StreamedDrafter] = {}
        for label, drafter in backend.drafters.items():
            settings = tuned_methods[label].settings_text if label in tuned_methods else ""
            shown_label = f"{label} ({settings})" if settings else label
            drafters[label] = _StreamedDrafter(drafter, shown_label, watch)
        # A `_StreamedDrafter` passes every other call on to its drafter.
        backend.drafters = cast("dict[str, Drafter]", drafters)
        for label, streamed_drafter in drafters.items():
            completion = backend.complete(label, request)
            watching_s = streamed_drafter.seconds  # seconds spent in `watch`
            decode_s = completion.decode_s - watching_s
            yield streamed_drafter.shown, replace(completion, decode_s=decode_s)


@dataclass(slots=True)
class Recording:
    """Recorded output of methods with its times, to replay it side by side at the same speed."""

    written: dict[str, list[tuple[float, Written]]] = field(default_factory=dict)
    done: dict[str, Completion] = field(default_factory=dict)

    def watch(self, label: str, written: Written) -> None:
        """Keep the text after a step; a `Watch`."""
        self.written.setdefault(label, []).append((perf_counter(), written))

    def timeline(self) -> list[tuple[float, str, Written | Completion]]:
        """Events in order of time: seconds since the method's start, its label, and its answer."""
        events: list[tuple[float, str, Written | Completion]] = []
        for label, done in self.done.items():
            steps = self.written.get(label, [])
            for moment, written in steps:
                events.append((done.prefill_s + moment - steps[0][0], label, written))
            events.append((done.wall_s, label, done))
        return sorted(events, key=lambda event: event[0])


class _StreamedDrafter:
    """A drafter that reports its answer after each step; the reports take `seconds`."""

    def __init__(self, drafter: Drafter, shown: str, watch: Watch) -> None:
        self._drafter = drafter
        self.shown = shown
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def start(self, state: State, *prefill: Any) -> None:
        self.seconds = 0.0
        self._lengths: list[int] = []
        self._tell(state)
        self._drafter.start(state, *prefill)

    def observe(self, state: State, *result: Any) -> None:
        # The prompt and the prefill's token are no part of a step.
        num_before = len(state.request.prompt_ids) + 1 + sum(self._lengths)
        self._lengths.append(len(state.token_ids) - num_before)
        self._tell(state)
        self._drafter.observe(state, *result)

    def _tell(self, state: State) -> None:
        began = perf_counter()
        new = state.token_ids[len(state.request.prompt_ids) :]
        self._watch(self.shown, Written(tuple(new), tuple(self._lengths)))
        self.seconds += perf_counter() - began
