"""Compute a method's costs: the time of a step and its parts, bandwidth bound, energy and memory.

A token costs step time / MAT, and vanilla's MAT is 1. So for the same completions, this is exact:

    decode speedup = MAT / (seconds of a step / seconds of a step of vanilla)

A method with a high MAT and a low speedup has expensive steps. The phases of a step, if they were
measured, show which part is expensive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from specbench.analysis.cells import ALL_FAILED, NO_BASELINE, NO_STEPS, NOT_RUN, CellKey
from specbench.analysis.energy import NOT_METERED, joules_per_token, joules_per_token_alone
from specbench.analysis.grouping import group_by
from specbench.analysis.records import PHASES, POOLED, RecordTable
from specbench.analysis.roofline import NO_BANDWIDTH, Roofline
from specbench.analysis.stats.arrays import IntArray
from specbench.analysis.stats.bootstrap import Draws
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.usage import MethodEnergy
from specbench.types import Phases


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of one cell.

    `mat` to `phases` cover the completions that vanilla has too, or all completions if vanilla has
    none.
    """

    mat: Value

    step_s: Value
    """The decode time of a step in seconds."""

    relative: Value
    """`step_s` / the `step_s` of vanilla."""

    decode_speedup: Value
    """`mat / relative`."""

    phases: Phases | None
    """The mean seconds of each phase of a step; None if phases were not timed."""

    bound: Value
    """The bandwidth bound: the decode speedup that memory bandwidth allows (see `Roofline`)."""

    reached: Value
    """The measured decode speedup / the bandwidth bound."""

    joules_per_token: Value
    """The energy of the whole card per token, in joules, with the prefill (see `energy`). If the
    method repeated its prompts alone, the energy was measured then; otherwise during its answers.
    """

    peak_memory_bytes: int | None
    """The most bytes in use in a completion, without the memory that only other methods need."""

    step_bytes: float = 0.0
    """The bytes of weights that a step reads, drafting included; 0 if unknown."""

    nominal_bytes_per_s: float = 0.0
    """The bandwidth in bytes/s that the memory's clock and bus width give; 0 if unknown."""

    @property
    def bytes_per_s(self) -> float:
        """The speed at which steps read weights, in bytes/s; 0 if unknown."""
        return self.step_bytes / self.step_s.value if isinstance(self.step_s, Estimate) else 0.0

    @property
    def nominal_share(self) -> float:
        """`bytes_per_s` / the nominal bandwidth; 0 if either is unknown."""
        if not self.nominal_bytes_per_s:
            return 0.0
        return self.bytes_per_s / self.nominal_bytes_per_s

    @property
    def relative_phases(self) -> Phases | None:
        """The seconds of each phase / the seconds of vanilla's step; None if either is unknown.

        Their sum is `relative`, less the part of a step outside phases.
        """
        if self.phases is None or not isinstance(self.relative, Estimate):
            return None
        assert isinstance(self.step_s, Estimate)
        scale = self.relative.value / self.step_s.value
        return Phases(*(seconds * scale for seconds in astuple(self.phases)))


NO_COST = Cost(NOT_RUN, NOT_RUN, NOT_RUN, NOT_RUN, None, NOT_RUN, NOT_RUN, NOT_METERED, None)
"""The costs of a cell that has no records."""


def measure_cost(
    key: CellKey,
    table: RecordTable,
    rows: IntArray,
    draws: Draws,
    roofline: Roofline | Missing = NO_BANDWIDTH,
    no_times: Missing | None = None,
) -> Cost:
    """Compute a cell's costs: time of a step and its parts, bandwidth bound, energy and memory.

    `rows` are the numbers of the cell's records. `draws` resamples the samples, for the interval of
    the energy. `no_times` is the reason why times are not evidence of speed, or None if they are.
    With such a reason, the decode speedup is missing, but the time of a step is not.
    """
    (is_measured,) = table.values(rows, "is_measured")  # False for failed records
    done_rows = rows[is_measured]
    # for each done row: steps (0 if not listed), seconds, and vanilla's steps and seconds (or 0)
    num_steps, decode_s, base_num_steps, base_decode_s = table.values(
        done_rows, "num_steps", "decode_s", "baseline_num_steps", "baseline_decode_s"
    )
    has_decoded = (num_steps > 0) & (decode_s > 0)  # [done rows]
    is_paired = has_decoded & (base_num_steps > 0) & (base_decode_s > 0)  # vanilla answered too
    is_counted = is_paired if is_paired.any() else has_decoded  # or all, if vanilla answered none

    no_steps = NO_STEPS  # the reason for missing numbers of steps
    if not len(done_rows):
        no_steps = ALL_FAILED if len(rows) else NOT_RUN
    mat: Value = no_steps
    step_s: Value = no_steps
    relative_cost: Value = no_steps
    if is_counted.any():
        (num_emitted,) = table.values(done_rows[is_counted], "num_emitted")
        num_counted_steps = num_steps[is_counted].sum()
        mat = Estimate(float(num_emitted.sum() / num_counted_steps))
        step_s = Estimate(float(decode_s[is_counted].sum() / num_counted_steps))
        relative_cost = NO_BASELINE
        if is_paired.any():
            base_step_s = base_decode_s[is_paired].sum() / base_num_steps[is_paired].sum()
            relative_cost = Estimate(float(step_s.value / base_step_s))

    decode_speedup = no_times or _quotient(mat, relative_cost)
    bound: Value = NO_BANDWIDTH
    step_bytes = nominal_bytes_per_s = 0.0  # 0: unknown
    if isinstance(roofline, Roofline):
        bound = roofline.bound(key.method, mat)
        step_bytes = roofline.step_bytes(key.method)
        nominal_bytes_per_s = roofline.nominal_bandwidth
    return Cost(
        mat=mat,
        step_s=step_s,
        relative=relative_cost,
        decode_speedup=decode_speedup,
        phases=_phases(table, done_rows[is_counted]),
        bound=bound,
        reached=_quotient(decode_speedup, bound),
        joules_per_token=joules_per_token(table, done_rows, draws),
        peak_memory_bytes=_peak_memory_bytes(table, done_rows),
        step_bytes=step_bytes,
        nominal_bytes_per_s=nominal_bytes_per_s,
    )


def costs_alone(
    costs: Mapping[CellKey, Cost], energies: Sequence[MethodEnergy]
) -> dict[CellKey, Cost]:
    """Put the energy of methods that also ran alone into their costs over all tasks.

    `energies` has the energy that each method used while it repeated its prompts alone. The result
    has only the changed costs.
    """
    energies_by_cell = group_by(
        energies, key=lambda energy: CellKey(energy.method, energy.temperature, POOLED)
    )
    return {
        key: replace(costs[key], joules_per_token=joules_per_token_alone(energies_of_cell))
        for key, energies_of_cell in energies_by_cell.items()
        if key in costs
    }


def _quotient(top: Value, bottom: Value) -> Value:
    """Divide `top` by `bottom`; missing if either is."""
    if isinstance(top, Missing):
        return top
    if isinstance(bottom, Missing):
        return bottom
    return Estimate(top.value / bottom.value)


def _peak_memory_bytes(table: RecordTable, rows: IntArray) -> int | None:
    (peaks,) = table.values(rows, "peak_memory_bytes")
    is_metered = ~np.isnan(peaks)
    return int(peaks[is_metered].max()) if is_metered.any() else None


def _phases(table: RecordTable, rows: IntArray) -> Phases | None:
    """Compute the mean seconds per step of each phase, over the records that have phases.

    None if no record has phases.
    """
    # steps of each record; and for each phase, its seconds in each record
    num_steps, *phase_times = table.values(rows, "num_steps", *PHASES)
    has_phases = ~np.isnan(phase_times[0])  # NaN: not timed
    if not has_phases.any():
        return None
    num_steps_timed = num_steps[has_phases].sum()
    per_step = (seconds[has_phases].sum() / num_steps_timed for seconds in phase_times)
    return Phases(*map(float, per_step))
