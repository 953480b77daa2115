"""The costs of a method: the time of a step and where it goes, its limit, energy and memory.

A token costs step time / MAT, and vanilla's MAT is 1, so that
over the same completions

    decode speedup = MAT / (seconds of a step / seconds of a step of vanilla's)

holds exactly. A method with a high MAT and a low speedup has expensive steps. The phases of a
step, if they were measured, tell which part is expensive.

The limit of a speedup on a machine is the time to read the weights from memory. At batch 1 a step
computes little for each weight that it reads, so no step is faster than its bytes / the memory
bandwidth. A step of vanilla reads the target's weights; a speculative step reads the target's and
the drafter's. Hence

    limit = MAT * target bytes / (target bytes + draft bytes)

times the bandwidth with the method's CPU threads / with vanilla's, if their numbers differ.

In a mixture of experts, the target's bytes are what one row reads. Several rows choose more
experts, at most all, so trees stay further below their limit than with a dense model.

Keys and values are left out. Every method's target forward reads nearly the same ones, so they
change the limit by a fraction of their own share (`kv_share`), a few percent for the papers'
prompts. If the weights fit into the processor's cache, this limit does not hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field

import numpy as np

from specbench.analysis.cells import ALL_FAILED, NO_BASELINE, NO_STEPS, NOT_RUN, CellKey
from specbench.analysis.records import BASELINE, PHASES, RecordTable
from specbench.analysis.stats.arrays import IntArray
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.backend import RooflineHeader
from specbench.log.machine import Threads
from specbench.types import Phases, Record

NOT_MEASURED = Missing("not measured")
NO_BANDWIDTH = Missing("bandwidth not measured")
IN_CACHE = Missing("weights fit the cache")
EXPERTS = Missing("mixture of experts")
UNKNOWN_DRAFT = Missing("draft bytes unknown")

CACHE_MARGIN = 2.0
"""Weights up to this many times the cache's size set no limit, since part of them stays in it."""
LEAST_SHARE = 0.6
"""The share of bandwidth below which vanilla is a slow baseline."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Memory speed of a run's machine and bytes that its steps read.

    `bandwidth` is in bytes/s. `draft_bytes` maps a method's spelling to bytes a step.
    `cache_bytes` is the size of the last-level cache, 0 if unknown. `kv_share` is the bytes of
    keys and values / the bytes of weights, in vanilla's mean step. `no_limit` is the reason if
    there is no limit. `speedups` are the bandwidths / vanilla's of methods that decode with
    other CPU threads. `block_bytes` were read or copied to measure the bandwidth, 0 if unknown.
    """

    bandwidth: float
    target_bytes: int
    cache_bytes: int
    draft_bytes: Mapping[str, float]
    kv_share: float
    no_limit: Missing | None = None
    speedups: Mapping[str, float] = field(default_factory=dict)
    block_bytes: int = 0

    def limit(self, method: str, mat: Value) -> Value:
        """The limit of a method's decode speedup at the MAT that it has."""
        if self.no_limit or isinstance(mat, Missing):
            return self.no_limit or mat
        if method not in self.draft_bytes:
            return UNKNOWN_DRAFT
        step = self.target_bytes + self.draft_bytes[method]
        return Estimate(mat.value * self.target_bytes / step * self.speedups.get(method, 1.0))

    def bandwidth_share(self, step_s: Value) -> Value:
        """The share of the bandwidth that vanilla's steps use, each of `step_s` seconds."""
        if self.no_limit or isinstance(step_s, Missing):
            return self.no_limit or step_s
        return Estimate(self.target_bytes / (step_s.value * self.bandwidth))


def read_roofline(
    about: RooflineHeader | None, records: Iterable[Record], threads: Threads | None = None
) -> Roofline | Missing:
    """The roofline of a run, from its header and records."""
    if about is None or not (about.bandwidth_bytes_per_s > 0 and about.target_bytes > 0):
        return NO_BANDWIDTH
    is_known = about.unread_bytes or not about.is_mixture_of_experts
    no_limit = None if is_known else EXPERTS
    target_bytes = about.target_bytes - about.unread_bytes
    if target_bytes <= CACHE_MARGIN * about.cache_bytes:
        no_limit = IN_CACHE
    return Roofline(
        bandwidth=about.bandwidth_bytes_per_s,
        target_bytes=target_bytes,
        cache_bytes=about.cache_bytes,
        draft_bytes=about.draft_bytes,
        kv_share=about.kv_bytes_per_token * _mean_context(records) / target_bytes,
        no_limit=no_limit,
        speedups={
            method: about.bandwidth_by_threads[str(num)] / about.bandwidth_bytes_per_s
            for method, num in (threads.own if threads else {}).items()
            if str(num) in about.bandwidth_by_threads
        },
        block_bytes=about.block_bytes,
    )


def _mean_context(records: Iterable[Record]) -> float:
    """Tokens in the cache at vanilla's mean step."""
    tokens = steps = 0.0
    for record in records:
        if record.key.method == BASELINE:
            count = len(record.accept_lengths)
            tokens += count * (record.prompt_tokens + (count + 1) / 2)
            steps += count
    return tokens / steps if steps else 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of one cell. The first four are over completions that vanilla has too.

    `step_s` is the decode time of a step in seconds, `relative` its ratio to vanilla's, and
    `decode_speedup` is `mat / relative`. `phases` are seconds a step. `limit` is the decode
    speedup that memory bandwidth allows, `reached` the measured share of it (see `Roofline`).
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
