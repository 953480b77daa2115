"""The end of a run's passes over the prompts: all were made, or intervals are narrow enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.types import Record

LEAST_PASSES = 3
"""Passes before --until-ci may end a run: with fewer, their variance is hardly known."""


def never_enough(records: Sequence[Record]) -> bool:
    """All passes are wanted."""
    return False


def until_width(header: RunHeader) -> Callable[[Sequence[Record]], bool]:
    """A test of whether the records of whole passes meet the run's `until_ci`.

    It is met if every mean speedup has an interval of at most this relative half width.
    """
    most = header.spec.values.until_ci
    if most is None:
        return never_enough

    def is_enough(records: Sequence[Record]) -> bool:
        metrics = measure(Run(header, tuple(records)))
        if metrics.scope.number < LEAST_PASSES:
            return False
        means = [value for one in metrics.rankings.values() for value in one.speedups.values()]
        return all(
            mean.interval is not None and mean.interval.half_width <= most * mean.value
            for mean in means
        )

    return is_enough


def finished_header(header: RunHeader, records: Sequence[Record]) -> RunHeader:
    """The header of a complete run: after --until-ci, with the passes that it took."""
    spec = header.spec
    if spec.values.until_ci is None:
        return header
    repeats = 1 + max((record.key.repeat for record in records), default=0)
    asked = spec.asked and structs.replace(spec.asked, repeats=repeats)
    values = structs.replace(spec.values, repeats=repeats)
    spec = structs.replace(spec, values=values, asked=asked)
    return structs.replace(header, spec=spec, num_records=len(records))
