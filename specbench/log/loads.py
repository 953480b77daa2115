"""The load of a server while requests are measured."""

from __future__ import annotations

from typing import NamedTuple

from specbench.log.backend import BlockHeader
from specbench.log.spec import SpecValues
from specbench.types import RecordKey


class Load(NamedTuple):
    """The load of a server: requests at once, or per second. Both are 0 for the engine."""

    concurrency: int = 0
    request_rate: float = 0

    @property
    def text(self) -> str:
        if self.concurrency == 1:
            return "1 request at a time"
        if self.concurrency:
            return f"{self.concurrency} requests at once"
        return f"{self.request_rate:g} requests/s" if self.request_rate else ""


NO_LOAD = Load()
"""The load of the engine in this process, which completes one request after the other."""
ONE_AT_A_TIME = Load(concurrency=1)


def load_of(measured: BlockHeader | RecordKey) -> Load:
    """The load at which a block or a record was measured."""
    return Load(measured.concurrency, measured.request_rate)


def loads_of(values: SpecValues) -> tuple[Load, ...]:
    """The loads that a run's specification names, in order; none for the engine."""
    at_once = [Load(concurrency=number) for number in values.concurrency]
    return (*at_once, *(Load(request_rate=rate) for rate in values.request_rates))
