"""The number of passes over the prompts, and what earlier passes on this machine tell.

Knows runs and their measured numbers. Must not know what completes a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import structs

from specbench.analysis.metrics import BASELINE, measure
from specbench.analysis.stats.bootstrap import Bootstrap, Estimate
from specbench.analysis.units import unit_sd
from specbench.errors import RunFolderError
from specbench.log.header import RunHeader, StoredSpread
from specbench.log.store import list_runs, read_run
from specbench.types import Record

LEAST_PASSES = 3
"""Passes before --until-ci may end a run: with fewer, their variance is hardly known."""
_MOST_RUNS = 5
_FEW = Bootstrap(200)
"""Enough resamples for a variance."""


@dataclass(frozen=True, slots=True)
class _Measured:
    header: RunHeader
    records: Sequence[Record]


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
        metrics = measure(_Measured(header, records))
        if metrics.scope.number < LEAST_PASSES:
            return False
        means = [value for one in metrics.rankings.values() for value in one.speedups.values()]
        return all(
            mean.interval is not None and mean.interval.half_width <= most * mean.value
            for mean in means
        )

    return is_enough


def finished_header(header: RunHeader, records: Sequence[Record], root: Path) -> RunHeader:
    """The header of a complete run: with the passes it took, and, after one, the stored spread."""
    values = header.spec.values
    repeats = values.repeats or 1
    if values.until_ci is not None:
        repeats = 1 + max((record.key.repeat for record in records), default=0)
        spec = header.spec
        asked = spec.asked and structs.replace(spec.asked, repeats=repeats)
        spec = structs.replace(spec, values=structs.replace(values, repeats=repeats), asked=asked)
        header = structs.replace(header, spec=spec, num_records=len(records))
    if repeats > 1 or header.stored_spread is not None:
        return header
    return structs.replace(header, stored_spread=stored_spread(header, root))


def stored_spread(header: RunHeader, root: Path) -> StoredSpread | None:
    """The spread of speedups between passes in the newest runs in `root` on the header's machine.

    The variances of a run's methods are averaged, and its degrees of freedom are those of one
    method, since all share vanilla. None without a run of several passes.
    """
    variances: list[float] = []
    degrees: list[int] = []
    for listed in list_runs(root):
        one = listed.header
        if not isinstance(one, RunHeader) or not _is_alike(one, header):
            continue
        try:
            stored = read_run(listed.path, is_lenient=True)
        except RunFolderError:  # it must not fail the run that has just ended
            continue
        metrics = measure(stored, _FEW)
        sds = [
            sd
            for (method, _), overall in metrics.overall.items()
            if method != BASELINE and isinstance(overall.speedup, Estimate)
            if (sd := unit_sd(overall.speedup)) is not None
        ]
        if sds:
            variances.append(float(np.mean(np.square(sds))))
            degrees.append(metrics.scope.number - 1)
        if len(variances) == _MOST_RUNS:
            break
    if not variances:
        return None
    sd = float(np.sqrt(np.average(variances, weights=degrees)))
    return StoredSpread(sd=sd, degrees=sum(degrees), num_runs=len(variances))


def _is_alike(one: RunHeader, header: RunHeader) -> bool:
    """True for a complete run of several passes on the same machine, in the same dtype."""
    values = one.spec.values
    return (
        one.status == "complete"
        and (values.repeats or 1) > 1
        and not values.phases
        and values.backend == header.spec.values.backend
        and one.machine.device == header.machine.device
        and one.model.precision == header.model.precision
    )
