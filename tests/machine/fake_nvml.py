"""A fake NVML with one card, whose answers a test sets."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

MISSING = "NVML_ERROR_NOT_SUPPORTED"


class FakeNvml:
    """The part of pynvml that is used.

    Every answer is a value, or the name of an error. `asked` counts the queries.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        def __init__(self, code: int) -> None:
            super().__init__(code)
            self.value = code

    def __init__(self, **answers: Any) -> None:
        self.asked: dict[str, int] = {}
        self.is_shut = False
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetMigMode": MISSING,
            "nvmlDeviceGetTotalEnergyConsumption": 0,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetPowerUsage": 300_000,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=7, total=80),
            "nvmlDeviceGetClockInfo": 1500,
            "nvmlDeviceGetTemperature": 40,
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetHandleByUUID": "card",
            **answers,
        }

    def nvmlShutdown(self) -> None:
        self.is_shut = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_ERROR_"):
            return getattr(pynvml, name)
        if name not in self.answers:
            raise AttributeError(name)
        return self._question(name)

    def _question(self, name: str) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            self.asked[name] = self.asked.get(name, 0) + 1
            answer = self.answers[name]
            if callable(answer):
                answer = answer(*arguments)
            if isinstance(answer, str) and answer.startswith("NVML_ERROR_"):
                raise self.NVMLError(getattr(pynvml, answer))
            return answer

        return ask
