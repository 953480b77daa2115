"""A run on servers as one run a load: speedups compare methods at the same load only.

Knows headers and records. Computes no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from specbench.log.header import RunHeader
from specbench.log.spec import SpecValues
from specbench.types import Record


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


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The part of a run that was measured at one load. Its header has this load alone."""

    header: RunHeader
    records: Sequence[Record]
    path: Path | None = None
    left_out: tuple[str, ...] = ()
    run_of_repeat: tuple[int, ...] = ()


def loads_of(values: SpecValues) -> tuple[Load, ...]:
    """The loads that a run's specification names, in order; none for the engine."""
    at_once = [Load(concurrency=number) for number in values.concurrency]
    return (*at_once, *(Load(request_rate=rate) for rate in values.request_rates))


def split_by_load(run: Any) -> list[Any]:
    """The parts of a run, one a load; the run itself if it has only one.

    What concerns the whole run, its warnings and lines left out, stays with the first part.
    """
    loads = loads_of(run.header.spec.values)
    if len(loads) < 2:
        return [run]
    parts = []
    for load in loads:
        values = replace(
            run.header.spec.values,
            concurrency=(load.concurrency,) if load.concurrency else (),
            request_rates=(load.request_rate,) if load.request_rate else (),
        )
        is_first = load == loads[0]
        header = replace(
            run.header,
            spec=replace(run.header.spec, values=values),
            blocks=tuple(one for one in run.header.blocks if _load(one) == load),
            warnings=run.header.warnings if is_first else (),
        )
        records = tuple(record for record in run.records if _load(record.key) == load)
        left_out = tuple(getattr(run, "left_out", ())) if is_first else ()
        path, run_of_repeat = getattr(run, "path", None), getattr(run, "run_of_repeat", ())
        parts.append(LoadRun(header, records, path, left_out, run_of_repeat))
    return parts


def parts_by_load(run: Any) -> dict[Load, Any]:
    """The parts of a run by load. The engine's is one request at a time, as it completes them."""
    parts = split_by_load(run)
    loads = (next(iter(loads_of(part.header.spec.values)), ONE_AT_A_TIME) for part in parts)
    return dict(zip(loads, parts, strict=True))


def _load(of: Any) -> Load:
    return Load(of.concurrency, of.request_rate)
