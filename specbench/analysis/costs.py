"""What a method costs: the time of a step and where it goes, its limit, energy and memory.

Knows the identity behind a speedup. A token costs step time / MAT, and vanilla's MAT is 1, so that
over the same completions

    decode speedup = MAT / (seconds of a step / seconds of a step of vanilla's)

holds exactly. A method with a high MAT and a low speedup has expensive steps; the phases of a step,
where they were measured, say what is expensive about them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TypeAlias

from specbench.analysis.cells import (
    ALL_FAILED,
    BASELINE,
    NO_BASELINE,
    NO_STEPS,
    NOT_RUN,
    CellKey,
    is_measured,
)
from specbench.analysis.columns import completion
from specbench.analysis.roofline import NO_BANDWIDTH, Roofline
from specbench.analysis.stats import Estimate, Missing, Value
from specbench.types import Phases, Record

NOT_MEASURED = Missing("not measured")


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of one cell. The first four are over the completions that vanilla has too.

    `step_s` is the decode time of a step, `relative` its ratio to vanilla's, and `decode_speedup`
    is `mat / relative`. `phases` are seconds a step. `limit` is what the memory's bandwidth allows
    the decode speedup, `reached` the share of it; see `roofline`. `joules_per_token` counts the
    whole card, prefill included; `peak_memory_bytes` is the most that was allocated during a
    completion, everything that the run had loaded included.
    """

    mat: Value
    step_s: Value
    relative: Value
    decode_speedup: Value
    phases: Phases | None
    limit: Value
    reached: Value
    joules_per_token: Value
    peak_memory_bytes: int | None

    @property
    def relative_phases(self) -> Phases | None:
        """The phases in steps of vanilla's: they add up to `relative`, but for what is outside."""
        if self.phases is None or not isinstance(self.relative, Estimate):
            return None
        assert isinstance(self.step_s, Estimate)
        scale = self.relative.value / self.step_s.value
        return Phases(*(seconds * scale for seconds in astuple(self.phases)))


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the costs of all cells of a run depend on. `no_times` says why times are no evidence of
    speed, if they are not: where a step's time goes remains, speedups do not.
    """

    roofline: Roofline | Missing = NO_BANDWIDTH
    no_times: Missing | None = None


def costs(
    grouped: Mapping[CellKey, Sequence[Record]], conditions: Conditions
) -> dict[CellKey, Cost]:
    """The costs of every cell that has records."""
    partners = {
        key: _by_completion(records) for key, records in grouped.items() if key.method == BASELINE
    }
    return {
        key: _measure(key.method, own, partners.get(replace(key, method=BASELINE), {}), conditions)
        for key, own in grouped.items()
    }


def measure_cost(
    method: str, own: Sequence[Record], baseline: Sequence[Record], conditions: Conditions
) -> Cost:
    """The costs of a single cell."""
    return _measure(method, own, _by_completion(baseline), conditions)


_Completion: TypeAlias = tuple[str, str, int, int]


def _by_completion(baseline: Sequence[Record]) -> dict[_Completion, Record]:
    return {completion(r): r for r in baseline if is_measured(r) and _is_decoded(r)}


def _measure(
    method: str,
    own: Sequence[Record],
    partners: Mapping[_Completion, Record],
    conditions: Conditions,
) -> Cost:
    done = [record for record in own if is_measured(record)]
    decoded = [record for record in done if _is_decoded(record)]
    shared = [record for record in decoded if completion(record) in partners]
    base = [partners[completion(record)] for record in shared]
    decoded = shared or decoded
    blank = NO_STEPS if done else ALL_FAILED if own else NOT_RUN
    mat: Value = blank
    step_s: Value = blank
    relative: Value = blank if not decoded else NO_BASELINE
    if decoded:
        mat = Estimate(_emitted(decoded) / _steps(decoded))
        step_s = Estimate(_step_s(decoded))
    if base:
        relative = Estimate(_step_s(decoded) / _step_s(base))
    decode_speedup = conditions.no_times or _quotient(mat, relative)
    limit: Value = NO_BANDWIDTH
    if isinstance(conditions.roofline, Roofline):
        limit = conditions.roofline.limit(method, mat)
    return Cost(
        mat,
        step_s,
        relative,
        decode_speedup,
        _phases(decoded),
        limit,
        _quotient(decode_speedup, limit),
        _joules_per_token(done),
        max((r.peak_memory_bytes for r in done if r.peak_memory_bytes is not None), default=None),
    )


def _is_decoded(record: Record) -> bool:
    return bool(record.accept_lengths) and (record.decode_s or 0.0) > 0


def _emitted(records: Sequence[Record]) -> int:
    return sum(sum(record.accept_lengths) for record in records)


def _steps(records: Sequence[Record]) -> int:
    return sum(len(record.accept_lengths) for record in records)


def _step_s(records: Sequence[Record]) -> float:
    return sum(record.decode_s or 0.0 for record in records) / _steps(records)


def _quotient(top: Value, bottom: Value) -> Value:
    if isinstance(top, Missing):
        return top
    return bottom if isinstance(bottom, Missing) else Estimate(top.value / bottom.value)


def _phases(records: Sequence[Record]) -> Phases | None:
    """Seconds a step, over the records that have phases."""
    split = [record for record in records if record.phases is not None]
    if not split:
        return None
    columns = zip(*(astuple(record.phases) for record in split if record.phases), strict=True)
    return Phases(*(sum(column) / _steps(split) for column in columns))


def _joules_per_token(records: Sequence[Record]) -> Value:
    metered = [record for record in records if record.energy_j is not None]
    if not metered:
        return NOT_MEASURED
    joules = sum(record.energy_j or 0.0 for record in metered)
    return Estimate(joules / sum(record.num_tokens for record in metered))


NO_COST = measure_cost("", (), (), Conditions())
"""The costs of a cell without records."""
