"""Runs made from other runs, with different values in the header or different times."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specbench.log.run import Run
from specbench.types import Record
from tests.analysis.run_factory import make_run
from tests.support.headers import values_of


def with_header(run: Run, **changes: Any) -> Run:
    """The run with these values at dotted paths of its header.

    A double underscore stands for a dot.
    """
    header = values_of(run.header)
    for path, setting in changes.items():
        *parents, last = path.split("__")
        place = header
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = setting
    return make_run(run.records, header)


def with_records(run: Run, change: Callable[[Record], Record | None]) -> Run:
    """The run with every record changed. A change that returns None removes the record."""
    changed = (change(record) for record in run.records)
    return make_run([record for record in changed if record is not None], run.header)


def slower(run: Run, factors: Mapping[str, float]) -> Run:
    """The run with the seconds of these methods multiplied."""

    def change(record: Record) -> Record:
        factor = factors.get(record.key.method, 1.0)
        if record.prefill_s is None or record.decode_s is None:
            return record
        return replace(
            record, prefill_s=record.prefill_s * factor, decode_s=record.decode_s * factor
        )

    return with_records(run, change)


def at_loads(run: Run, loads: Mapping[int, Mapping[str, float]]) -> Run:
    """The run at several loads (requests at once), each with the factors that slow its methods."""
    records = [
        replace(record, key=replace(record.key, concurrency=load))
        for load, factors in loads.items()
        for record in slower(run, factors).records
    ]
    return make_run(records, with_header(run, spec__values__concurrency=[*loads]).header)


def several(run: Run, number: int = 4, *, sd: float = 0.003, seed: int = 0) -> Run:
    """A pool of runs like this one. Between runs, each method's seconds differ by this spread."""
    draw = random.Random(seed)
    methods = sorted({record.key.method for record in run.records})
    return Run.pooled(
        [
            slower(run, {method: draw.lognormvariate(0, sd) for method in methods})
            for _ in range(number)
        ]
    )


def broken(record: Record, error: str = "boom") -> Record:
    """The record of a failed sample."""
    return Record(record.key, "error", record.prompt_tokens, error=error)
