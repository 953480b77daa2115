"""The phases of a step, measured with fake clocks."""

from __future__ import annotations

import itertools
import time
from dataclasses import astuple

import pytest
import torch

from specbench.engine import clock
from specbench.engine.clock import EventStopwatch, HostStopwatch, phase_stopwatch
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.registry import get
from specbench.types import Phases, Request
from tests.support.models import prompts, random_target


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list of the readings of a clock that advances by a second per reading."""
    seen: list[float] = []
    seconds = itertools.count()

    def read() -> float:
        seen.append(float(next(seconds)))
        return seen[-1]

    monkeypatch.setattr(time, "perf_counter", read)
    return seen


REQUEST = Request(prompts()[3], 20)


def test_every_phase_of_every_step_is_timed_once(readings: list[float]) -> None:
    target, method = random_target(), get("pld")
    drafter = method.build(method.options(), BuildContext(target))
    done = decode(target, drafter, REQUEST, stopwatch=HostStopwatch())
    steps = float(len(done.steps))
    # The first draft begins before the look at the clock that ends the drafter's prefill.
    assert done.phases == Phases(steps + 1, steps, steps, steps)
    # The last lap ends at the clock's last look but one, the first begins at the prefill's end.
    assert done.decode_s == sum(astuple(done.phases)) + 2


def test_a_run_without_phases_reads_the_clock_at_its_four_borders_only(
    readings: list[float],
) -> None:
    target, method = random_target(), get("pld")
    drafter = method.build(method.options(), BuildContext(target))
    done = decode(target, drafter, REQUEST)
    assert done.phases is None
    assert len(readings) == 4  # begin, prefill, the drafter's prefill, end


def test_a_stopwatch_forgets_the_completion_before() -> None:
    target, method = random_target(), get("vanilla")
    drafter = method.build(method.options(), BuildContext(target))
    watch = HostStopwatch()
    long = decode(target, drafter, Request(prompts()[1], 40), stopwatch=watch)
    short = decode(target, drafter, Request(prompts()[1], 1), stopwatch=watch)
    assert long.phases is not None
    assert min(astuple(long.phases)) > 0
    assert short.phases == Phases(0.0, 0.0, 0.0, 0.0)


class Timeline:
    """Device events that are 1, 2, 4, ... milliseconds apart."""

    def __init__(self) -> None:
        self.num_recorded = 0

    def event(self, enable_timing: bool) -> Timeline.Event:
        assert enable_timing
        return Timeline.Event(self)

    class Event:
        def __init__(self, line: Timeline) -> None:
            self._line = line
            self.at_ms = 0.0

        def record(self, stream: object) -> None:
            self.at_ms = float(2**self._line.num_recorded)
            self._line.num_recorded += 1

        def elapsed_time(self, later: Timeline.Event) -> float:
            return later.at_ms - self.at_ms


def test_on_a_gpu_a_phase_is_the_time_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Timeline()
    monkeypatch.setattr(torch.cuda, "Event", line.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    watch = phase_stopwatch(torch.device("cuda"))
    assert isinstance(watch, EventStopwatch)
    watch.start()
    for phase in (*clock.PHASES, "draft"):
        watch.lap(phase)
    assert watch.read() == Phases(0.001 + 0.016, 0.002, 0.004, 0.008)
