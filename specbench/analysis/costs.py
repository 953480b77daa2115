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
    lines: dict[int, _Line] = {}  # a record is in the cell of its task and in the pooled one
    cells = {
        key: [lines.get(id(r)) or lines.setdefault(id(r), _line(r)) for r in records]
        for key, records in grouped.items()
    }
    partners = {key: _partners(own) for key, own in cells.items() if key.method == BASELINE}
    return {
        key: _measure(key.method, own, partners.get(replace(key, method=BASELINE), {}), conditions)
        for key, own in cells.items()
    }


def measure_cost(
    method: str, own: Sequence[Record], baseline: Sequence[Record], conditions: Conditions
) -> Cost:
    """The costs of a single cell."""
    partners = _partners([_line(record) for record in baseline])
    return _measure(method, [_line(record) for record in own], partners, conditions)


_Completion: TypeAlias = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class _Line:
    """What the costs ask of a record, counted once."""

    record: Record
    completion: _Completion
    decode_s: float
    num_steps: int
    num_emitted: int
    is_done: bool

    @property
    def is_decoded(self) -> bool:
        return self.is_done and self.num_steps > 0 and self.decode_s > 0


def _line(record: Record) -> _Line:
    lengths = record.accept_lengths
    return _Line(
        record, completion(record), record.decode_s or 0.0, len(lengths), sum(lengths),
        is_measured(record),
    )  # fmt: skip


def _partners(baseline: Sequence[_Line]) -> dict[_Completion, _Line]:
    return {line.completion: line for line in baseline if line.is_decoded}


def _measure(
    method: str,
    own: Sequence[_Line],
    partners: Mapping[_Completion, _Line],
    conditions: Conditions,
) -> Cost:
    done = [line for line in own if line.is_done]
    decoded = [line for line in done if line.is_decoded]
    shared = [line for line in decoded if line.completion in partners]
    base = [partners[line.completion] for line in shared]
    decoded = shared or decoded
    blank = NO_STEPS if done else ALL_FAILED if own else NOT_RUN
    mat: Value = blank
    step_s: Value = blank
    relative: Value = blank if not decoded else NO_BASELINE
    if decoded:
        mat = Estimate(sum(line.num_emitted for line in decoded) / _steps(decoded))
        step_s = Estimate(_step_s(decoded))
    if base:
        relative = Estimate(_step_s(decoded) / _step_s(base))
    decode_speedup = conditions.no_times or _quotient(mat, relative)
    limit: Value = NO_BANDWIDTH
    if isinstance(conditions.roofline, Roofline):
        limit = conditions.roofline.limit(method, mat)
    peaks = [line.record.peak_memory_bytes for line in done]
    return Cost(
        mat,
        step_s,
        relative,
        decode_speedup,
        _phases(decoded),
        limit,
        _quotient(decode_speedup, limit),
        _joules_per_token([line.record for line in done]),
        max((peak for peak in peaks if peak is not None), default=None),
    )


def _steps(lines: Sequence[_Line]) -> int:
    return sum(line.num_steps for line in lines)


def _step_s(lines: Sequence[_Line]) -> float:
    return sum(line.decode_s for line in lines) / _steps(lines)


def _quotient(top: Value, bottom: Value) -> Value:
    if isinstance(top, Missing):
        return top
    return bottom if isinstance(bottom, Missing) else Estimate(top.value / bottom.value)


def _phases(lines: Sequence[_Line]) -> Phases | None:
    """Seconds a step, over the records that have phases."""
    split = [line for line in lines if line.record.phases is not None]
    if not split:
        return None
    rows = (astuple(line.record.phases) for line in split if line.record.phases)
    return Phases(*(sum(column) / _steps(split) for column in zip(*rows, strict=True)))


def _joules_per_token(records: Sequence[Record]) -> Value:
    metered = [record for record in records if record.energy_j is not None]
    if not metered:
        return NOT_MEASURED
    joules = sum(record.energy_j or 0.0 for record in metered)
    return Estimate(joules / sum(record.num_tokens for record in metered))


NO_COST = measure_cost("", (), (), Conditions())
"""The costs of a cell without records."""
