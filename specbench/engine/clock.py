"""Time in seconds, read when the device has finished what it was given."""

import time
from typing import Protocol

import torch


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
