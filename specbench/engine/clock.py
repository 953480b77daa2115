"""Time a completion on a synchronised device, and the phases of its steps."""

import time
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch

from specbench.errors import checked_seconds
from specbench.types import Phases

Phase = Literal["draft", "verify", "commit", "host"]
PHASES: tuple[Phase, ...] = ("draft", "verify", "commit", "host")
"""The phases in the order in which a step runs them."""


class Clock(Protocol):
    """A source of the time in seconds."""

    def now(self) -> float: ...


class DeviceClock:
    """`time.perf_counter` after a device synchronisation. Read it only around timed regions."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Stopwatch:
    """Measures laps of one completion, one per phase of a step. This base class does nothing."""

    def start(self) -> None:
        """Forget the last completion and begin the first phase."""

    def lap(self, phase: Phase) -> None:
        """End `phase` and begin the next one."""

    def read(self) -> Phases | None:
        """Seconds of each phase since `start`. Synchronise the device first."""
        return None


class HostStopwatch(Stopwatch):
    """Measures laps with `time.perf_counter` on a CPU, which works synchronously."""

    def start(self) -> None:
        self._marks = [self._mark()]
        self._phases: list[Phase] = []

    def lap(self, phase: Phase) -> None:
        self._marks.append(self._mark())
        self._phases.append(phase)

    def read(self) -> Phases:
        seconds = dict.fromkeys(PHASES, 0.0)
        for phase, (begin, end) in zip(self._phases, pairwise(self._marks), strict=True):
            lap_s = self._between(begin, end)
            if lap_s < 0:
                checked_seconds(lap_s, "an answer")  # raises
            seconds[phase] += lap_s
        return Phases(*seconds.values())

    def _mark(self) -> Any:
        return time.perf_counter()

    def _between(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to the next."""
        return float(end - begin)


class EventStopwatch(HostStopwatch):
    """Measures laps on the timeline of a CUDA device, with an event at the end of each lap.

    Recording an event does not wait for the device. A phase lasts from the end of all earlier work
    of the device to the end of the phase's own work. If the device waits until the host launches
    more work, the wait belongs to the phase of that launch, because events cannot tell waiting from
    work. So `host` is the serial part of a step, in which the device is idle while the host counts
    the emitted tokens. Waits for the launches of a draft belong to `draft`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return begin.elapsed_time(end) / 1e3


def phase_stopwatch(device: torch.device) -> Stopwatch:
    """The stopwatch that measures phases on a device."""
    return EventStopwatch(device) if device.type == "cuda" else HostStopwatch()
