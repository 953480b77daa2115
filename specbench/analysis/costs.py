"""The costs of a method: the time of a step and where it goes, its limit, energy and memory.

A token costs step time / MAT, and vanilla's MAT is 1, so that
over the same completions

    decode speedup = MAT / (seconds of a step / seconds of a step of vanilla's)

holds exactly. A method with a high MAT and a low speedup has expensive steps. The phases of a
step, if they were measured, tell which part is expensive.
"""

from dataclasses import astuple, dataclass

import numpy as np

from specbench.analysis.cells import ALL_FAILED, NO_BASELINE, NO_STEPS, NOT_RUN, CellKey
from specbench.analysis.records import PHASES, RecordTable
from specbench.analysis.roofline import NO_BANDWIDTH, Roofline
from specbench.analysis.stats.arrays import IntArray
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.types import Phases

NOT_MEASURED = Missing("not measured")


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of one cell. The first four are over completions that vanilla has too.

    `step_s` is the decode time of a step in seconds, `relative` its ratio to vanilla's, and
    `decode_speedup` is `mat / relative`. `phases` are seconds a step. `limit` is the decode
    speedup that memory bandwidth allows, `reached` the measured share of it (see `roofline`).
    `joules_per_token` counts the whole card, prefill included. `peak_memory_bytes` is the most
    that was allocated during a completion, without what only other methods needed.
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
        """The phases in steps of vanilla. They add up to `relative`, less other time."""
        if self.phases is None or not isinstance(self.relative, Estimate):
            return None
        assert isinstance(self.step_s, Estimate)
        scale = self.relative.value / self.step_s.value
        return Phases(*(seconds * scale for seconds in astuple(self.phases)))


NO_COST = Cost(NOT_RUN, NOT_RUN, NOT_RUN, NOT_RUN, None, NOT_RUN, NOT_RUN, NOT_MEASURED, None)
"""The costs of a cell without records."""


def measure_cost(
    key: CellKey,
    table: RecordTable,
    rows: IntArray,
    roofline: Roofline | Missing = NO_BANDWIDTH,
    no_times: Missing | None = None,
) -> Cost:
    """The costs of a cell, which has these rows of the table.

    `no_times` is the reason why times are not evidence of speed, if they are not. The cost of
    a step remains, speedups do not.
    """
    (is_measured,) = table.values(rows, "is_measured")
    done = rows[is_measured]
    num_steps, decode_s, base_steps, base_decode_s = table.values(
        done, "num_steps", "decode_s", "baseline_num_steps", "baseline_decode_s"
    )
    joules, tokens, peaks = table.values(done, "energy_j", "num_tokens", "peak_memory_bytes")
    is_metered, has_peak = ~np.isnan(joules), ~np.isnan(peaks)
    is_decoded = (num_steps > 0) & (decode_s > 0)
    is_paired = is_decoded & (base_steps > 0) & (base_decode_s > 0)
    counted = is_paired if is_paired.any() else is_decoded
    blank = NO_STEPS if len(done) else ALL_FAILED if len(rows) else NOT_RUN
    mat: Value = blank
    step_s: Value = blank
    relative: Value = NO_BASELINE if counted.any() else blank
    if counted.any():
        (num_emitted,) = table.values(done[counted], "num_emitted")
        mat = Estimate(float(num_emitted.sum() / num_steps[counted].sum()))
        step_s = Estimate(float(decode_s[counted].sum() / num_steps[counted].sum()))
        if is_paired.any():
            base_s = base_decode_s[is_paired].sum() / base_steps[is_paired].sum()
            relative = Estimate(float(step_s.value / base_s))
    joules_per_token: Value = NOT_MEASURED
    if is_metered.any():
        joules_per_token = Estimate(float(joules[is_metered].sum() / tokens[is_metered].sum()))
    decode_speedup = no_times or _quotient(mat, relative)
    limit = roofline.limit(key.method, mat) if isinstance(roofline, Roofline) else NO_BANDWIDTH
    return Cost(
        mat=mat,
        step_s=step_s,
        relative=relative,
        decode_speedup=decode_speedup,
        phases=_phases(table, done[counted]),
        limit=limit,
        reached=_quotient(decode_speedup, limit),
        joules_per_token=joules_per_token,
        peak_memory_bytes=int(peaks[has_peak].max()) if has_peak.any() else None,
    )


def _quotient(top: Value, bottom: Value) -> Value:
    if isinstance(top, Missing):
        return top
    return bottom if isinstance(bottom, Missing) else Estimate(top.value / bottom.value)


def _phases(table: RecordTable, rows: IntArray) -> Phases | None:
    """Seconds a step, over the records that have phases."""
    num_steps, *phases = table.values(rows, "num_steps", *PHASES)
    is_phased = ~np.isnan(phases[0])
    if not is_phased.any():
        return None
    total = num_steps[is_phased].sum()
    return Phases(*(float(seconds[is_phased].sum() / total) for seconds in phases))
