"""Complete one prompt with one method after another, and show the answers as they grow.

The time that showing takes is subtracted from the method's time.
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
    """The tokens of an answer so far, and the number of tokens that each step emitted."""

    token_ids: tuple[int, ...] = ()
    accept_lengths: tuple[int, ...] = ()


Watch = Callable[[str, Written], None]
"""Receives a method's label and its answer so far, after the prefill and each step but the last."""


def race(setup: EngineSetup, request: Request, watch: Watch) -> Iterator[tuple[str, Completion]]:
    """Complete a request with each method of a setup in turn.

    Yields a label and the completion for each method. The label is the method's name, with its
    settings in parentheses if they are not the paper's. `watch` is called with that label and the
    tokens so far, after the prefill and after each step but the last: the completion has the whole
    answer. The seconds that `watch` takes are not part of `decode_s`, the seconds of all steps.
    """
    with EngineBackend(setup) as backend:
        backend.warm_up([request])
        # Headers, by label, of the methods that got settings in the warm-up, from `specbench tune`
        # or from a file. `settings_text` is a text such as "6 tokens; paper: 10". It is empty if
        # the settings are equal to the paper's.
        tuned_methods = backend.describe().methods
        watched_drafters: dict[str, _WatchedDrafter] = {}
        for label, drafter in backend.drafters.items():
            settings_text = tuned_methods[label].settings_text if label in tuned_methods else ""
            shown_label = f"{label} ({settings_text})" if settings_text else label
            watched_drafters[label] = _WatchedDrafter(drafter, shown_label, watch)
        # A `_WatchedDrafter` passes all calls on to its drafter, so it can stand in its place.
        backend.drafters = cast("dict[str, Drafter]", watched_drafters)
        for label, watched_drafter in watched_drafters.items():
            completion = backend.complete(label, request)
            decode_s = completion.decode_s - watched_drafter.watching_s
            yield watched_drafter.shown_label, replace(completion, decode_s=decode_s)


@dataclass(slots=True)
class Recording:
    """The output of methods with its times, to replay it side by side at its real speed."""

    written: dict[str, list[tuple[float, Written]]] = field(default_factory=dict)
    """The time of each call of `watch` [seconds on a clock] with the answer so far, by label."""
    done: dict[str, Completion] = field(default_factory=dict)
    """The whole completions, by label."""

    def watch(self, label: str, written: Written) -> None:
        """Keep a method's answer so far, with the time. This is a `Watch`."""
        self.written.setdefault(label, []).append((perf_counter(), written))

    def timeline(self) -> list[tuple[float, str, Written | Completion]]:
        """The events of all methods in order of time, as if the methods had started together.

        An event has the seconds since the start, the method's label, and the answer so far. The
        last event of a method has its whole completion instead.
        """
        events: list[tuple[float, str, Written | Completion]] = []
        for label, completion in self.done.items():
            answers = self.written.get(label, [])  # pairs of a time and the answer so far
            for clock_s, answer in answers:
                since_prefill_s = clock_s - answers[0][0]  # the first answer follows the prefill
                events.append((completion.prefill_s + since_prefill_s, label, answer))
            events.append((completion.wall_s, label, completion))
        return sorted(events, key=lambda event: event[0])  # by seconds


class _WatchedDrafter:
    """A drafter that gives `watch` the answer so far, until the answer is complete."""

    def __init__(self, drafter: Drafter, shown_label: str, watch: Watch) -> None:
        self._drafter = drafter
        self.shown_label = shown_label
        self._watch = watch
        self.watching_s = 0.0  # seconds spent in `watch` during this request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def start(self, state: State, *prefill: Any) -> None:
        self.watching_s = 0.0
        self._accept_lengths: list[int] = []  # tokens emitted per step
        self._show(state)
        self._drafter.start(state, *prefill)

    def observe(self, state: State, *result: Any) -> None:
        # Steps emit the tokens after the prompt and the prefill's token.
        num_before = len(state.request.prompt_ids) + 1 + sum(self._accept_lengths)
        self._accept_lengths.append(len(state.token_ids) - num_before)
        self._show(state)
        self._drafter.observe(state, *result)

    def _show(self, state: State) -> None:
        began = perf_counter()
        answer_ids = state.token_ids[len(state.request.prompt_ids) :]  # the tokens so far
        self._watch(self.shown_label, Written(tuple(answer_ids), tuple(self._accept_lengths)))
        self.watching_s += perf_counter() - began
