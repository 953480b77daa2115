"""A clock that goes back or stands still fails the request that it timed, and nothing else."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.engine.clock import HostStopwatch
from specbench.engine.decode import decode
from specbench.errors import ClockError
from specbench.log.backend import RooflineHeader
from specbench.log.store import read_run
from specbench.machine import bandwidth as bandwidth_module
from specbench.machine.bandwidth import bandwidth
from specbench.measure.local import traffic
from specbench.measure.local.trial import Trial
from specbench.measure.server.records import make_record
from specbench.measure.server.stream import Answer, Counts
from specbench.types import Completion, Phases, RecordKey, Request, RequestKey
from tests.faults.program import fake_run
from tests.support.backend import Words, answering
from tests.support.devices import CPU
from tests.support.models import random_target
from tests.support.weights import build

GOOD = answering(1)(Request((1,), 8))
NO_TIME = {"prefill_s": 0.0, "decode_s": 0.0}
WRONG: dict[str, Any] = {
    "the clock went back while it decoded": {"decode_s": -9.8},
    "the clock went back in the prefill": {"prefill_s": -9.8},
    "the clock went back in a phase": {"phases": Phases(0.1, -9.8, 0.1, 0.1)},
    "the clock went back around it": {"outer_s": -9.8},
    "the clock went back in the drafter's prefill": {"draft_prefill_s": -9.8},
    "the clock went back after it": {"outer_s": GOOD.wall_s / 2},
    "the clock stood still": NO_TIME,
}


class ClockOf:
    """A clock that runs, except for one change at a reading."""

    def __init__(self, number: int, *, goes_back: bool) -> None:
        self._number = number
        self._goes_back = goes_back
        self._readings = 0

    def now(self) -> float:
        self._readings += 1
        if self._readings < self._number:
            return float(self._readings)
        return self._readings - 100.0 if self._goes_back else float(self._number)


@pytest.mark.parametrize("change", WRONG.values(), ids=[*WRONG])
def test_only_the_request_with_a_wrong_clock_fails(change: Any, tmp_path: Path) -> None:
    numbers = itertools.count(1)

    def complete(request: Request) -> Completion:
        answer = answering(1)(request)
        is_second = next(numbers) == 2
        return replace(answer, **change) if is_second else answer

    fake_run(tmp_path / "run", {"vanilla": complete}, 3)
    run = read_run(tmp_path / "run")
    assert run.header.status == "complete"
    assert [record.status for record in run.records] == ["ok", "error", "ok", "ok", "ok", "ok"]
    assert "The clock " in str(run.records[1].error)


@pytest.mark.parametrize(
    ("reading", "goes_back"), [(2, True), (3, True), (4, True), (1, False), (2, False)]
)
def test_the_loop_refuses_times_that_no_clock_gives(
    reading: int, goes_back: bool, tmp_path: Path
) -> None:
    target = random_target()
    vanilla = build("vanilla", target, tmp_path)
    clock = ClockOf(reading, goes_back=goes_back)
    with pytest.raises(ClockError):
        decode(target, vanilla, Request((1, 2, 3), 6), clock)


def test_a_lap_that_ends_before_it_began_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laps after the change may be long enough to hide it in the sum."""
    readings = iter([1.0, 2.0, 1.5, 20.0])
    monkeypatch.setattr("specbench.engine.clock.time.perf_counter", lambda: next(readings))
    watch = HostStopwatch()
    watch.start()
    for _ in range(3):
        watch.lap("verify")
    with pytest.raises(ClockError, match=r"went back by 0\.5 s"):
        watch.read()


def test_a_bandwidth_needs_a_running_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.chain([-9.0, 0.0, 2.0], itertools.repeat(5.0))
    monkeypatch.setattr(bandwidth_module, "_timed", lambda call: next(times))
    assert bandwidth(CPU, 1000) == 1000 / 2.0
    monkeypatch.setattr(bandwidth_module, "_timed", lambda call: 0.0)
    with pytest.raises(ClockError, match="stood still"):
        bandwidth(CPU, 1000)
    header = RooflineHeader(3.0, 0, 10, 1, is_mixture_of_experts=False, block_bytes=1000)
    assert traffic.measure_again(header, CPU) == header


def test_a_trial_of_threads_survives_any_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.measure.local.trial.set_threads", lambda count: None)
    seconds = itertools.cycle([0.0, -9.0, 0.1, 0.2])
    assert Trial((2, 1), kept=2, seconds=1).measure(lambda: next(seconds)).best in (1, 2)


@pytest.mark.parametrize("arrivals", [(0.5, 2.0), (2.0, 1.5), (3.0, 1.0, 4.0), (1.0, 1.0)])
def test_tokens_that_arrive_in_the_past_fail_the_answer(arrivals: tuple[float, ...]) -> None:
    key = RecordKey("vanilla", *RequestKey(0.0, "t", "t/1", 0, 0))
    answer = Answer("a", (5, 6, 7), "budget", 3, None, Counts(), 1.0, arrivals)
    with pytest.raises(ClockError):
        make_record(key, Request((1,), 3), answer, Words(), began=0.0, is_prompt_sent=True)
