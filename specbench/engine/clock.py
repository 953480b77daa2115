"""Time in seconds: of a completion, on a synchronised device, and of the phases of its steps."""

import time
from typing import Literal, Protocol

import torch

from specbench.types import Phases

Phase = Literal["draft", "verify", "commit", "host"]
PHASES: tuple[Phase, ...] = ("draft", "verify", "commit", "host")
"""In the order of a step."""


class Clock(Protocol):
    """Anything that tells the time in seconds."""

    def now(self) -> float: ...


class DeviceClock:
    """`time.perf_counter` behind a synchronised device. Read only at borders of timed regions."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Stopwatch:
    """The laps of one completion, a phase of a step each. This one measures nothing."""

    def start(self) -> None:
        """Forget the last completion; the first phase begins."""

    def lap(self, phase: Phase) -> None:
        """A phase ends here and the next one begins."""

    def read(self) -> Phases | None:
        """The seconds of each phase since `start`. To be called on a synchronised device."""
        return None


class HostStopwatch(Stopwatch):
    """Laps by `time.perf_counter`, for a device that is done when a call returns: the CPU."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._last = 0.0

    def start(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._last = time.perf_counter()

    def lap(self, phase: Phase) -> None:
        now = time.perf_counter()
        self._seconds[phase] += now - self._last
        self._last = now

    def read(self) -> Phases:
        return _phases(self._seconds)


class EventStopwatch(Stopwatch):
    """Laps on a CUDA device's own timeline, by an event at each border and without a wait.

    A phase runs from the moment the device has done all that was ordered before it to the moment
    it has done the phase's own work. Where the device waits for the host to order more, the wait
    belongs to the phase whose order it waits for: events see it and cannot tell it from work.
    Hence `host` is the serial part of a step, in which the device has nothing left to do while the
    host counts what was emitted; waits for the launches of a draft are a part of `draft`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._borders: list[torch.cuda.Event] = []
        self._names: list[Phase] = []

    def start(self) -> None:
        self._borders = [self._mark()]
        self._names = []

    def lap(self, phase: Phase) -> None:
        self._borders.append(self._mark())
        self._names.append(phase)

    def read(self) -> Phases:
        seconds = dict.fromkeys(PHASES, 0.0)
        for i, phase in enumerate(self._names):
            seconds[phase] += self._borders[i].elapsed_time(self._borders[i + 1]) / 1e3
        return _phases(seconds)

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def phase_stopwatch(device: torch.device) -> Stopwatch:
    """The stopwatch that measures phases on a device."""
    return EventStopwatch(device) if device.type == "cuda" else HostStopwatch()


def _phases(seconds: dict[Phase, float]) -> Phases:
    return Phases(*(seconds[phase] for phase in PHASES))
