"""The costs of a method: the time of a step and where it goes, its bandwidth bound, energy, memory.

A token costs step time / MAT, and vanilla's MAT is 1, so that
over the same completions

    decode speedup = MAT / (seconds of a step / seconds of a step of vanilla's)

holds exactly. A method with a high MAT and a low speedup has expensive steps. The phases of a
step, if they were measured, tell which part is expensive.

The bandwidth bound of a speedup comes from the time to read the weights from memory. At batch 1 a
step computes little for each weight that it reads, so no step is faster than its bytes / the memory
bandwidth. A step of vanilla reads the target's weights; a speculative step reads the target's and
the drafter's. Hence

    bandwidth bound = MAT * target bytes / (target bytes + draft bytes)

times the bandwidth with the method's CPU threads / with vanilla's, if their numbers differ.

In a mixture of experts, the target's bytes are what one row reads. Several rows choose more
experts, at most all, so trees stay further below their bound than with a dense model.

Keys and values are left out. Every method's target forward reads nearly the same ones, so they
change the bound by a fraction of their own share (`kv_share`), a few percent for the papers'
prompts. If the weights fit into the processor's cache, this bound does not hold.
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
"""Weights up to this many times the cache's size set no bound, since part of them stays in it."""
LEAST_SHARE = 0.6
"""The share of bandwidth below which vanilla is a slow baseline."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Memory speed of a run's machine and bytes that its steps read."""

    bandwidth: float
    """Bytes/s."""

    target_bytes: int
    """The target's weights that a step reads."""

    cache_bytes: int
    """The size of the last-level cache, 0 if unknown."""

    draft_bytes: Mapping[str, float]
    """A method's spelling -> bytes that it reads per step."""

    kv_share: float
    """The bytes of keys and values / the bytes of weights, in vanilla's mean step."""

    no_bound: Missing | None = None
    """The reason if there is no bandwidth bound."""

    speedups: Mapping[str, float] = field(default_factory=dict)
    """The bandwidths / vanilla's of methods that decode with other CPU threads."""

    block_bytes: int = 0
    """The bytes read or copied to measure the bandwidth, 0 if unknown."""

    def bound(self, method: str, mat: Value) -> Value:
        """The bandwidth bound of a method's decode speedup at the MAT that it has.

        It is MAT * target bytes / (target bytes + draft bytes), times the bandwidth with the
        method's CPU threads / with vanilla's. Missing with the reason if it cannot be given.
        """
        if self.no_bound:
            return self.no_bound
        if isinstance(mat, Missing):
            return mat
        if method not in self.draft_bytes:
            return UNKNOWN_DRAFT
        step_bytes = self.target_bytes + self.draft_bytes[method]
        bandwidth_ratio = self.speedups.get(method, 1.0)
        return Estimate(mat.value * self.target_bytes / step_bytes * bandwidth_ratio)

    def bandwidth_share(self, step_s: Value) -> Value:
        """The share of the bandwidth that vanilla's steps use, each of `step_s` seconds."""
        if self.no_bound:
            return self.no_bound
        if isinstance(step_s, Missing):
            return step_s
        return Estimate(self.target_bytes / (step_s.value * self.bandwidth))


def read_roofline(
    header: RooflineHeader | None, records: Iterable[Record], threads: Threads | None = None
) -> Roofline | Missing:
    """The roofline of a run, from its header and records.

    `threads` is the run's number of CPU threads and those of methods with numbers of their own, if
    it ran on a CPU. Missing without a measured bandwidth.
    """
    if header is None or header.bandwidth_bytes_per_s <= 0 or header.target_bytes <= 0:
        return NO_BANDWIDTH
    # Weights of the target that a step reads: not all, in a mixture of experts.
    target_bytes = header.target_bytes - header.unread_bytes
    no_bound = None
    if target_bytes <= CACHE_MARGIN * header.cache_bytes:
        # Up to CACHE_MARGIN times the cache, part of the weights stays there and is not read again.
        no_bound = IN_CACHE
    elif header.is_mixture_of_experts and not header.unread_bytes:
        no_bound = EXPERTS  # unknown how many of the experts a step reads
    return Roofline(
        bandwidth=header.bandwidth_bytes_per_s,
        target_bytes=target_bytes,
        cache_bytes=header.cache_bytes,
        draft_bytes=header.draft_bytes,
        kv_share=header.kv_bytes_per_token * _mean_context(records) / target_bytes,
        no_bound=no_bound,
        speedups=_bandwidth_ratios(header, threads) if threads else {},
        block_bytes=header.block_bytes,  # read or copied to measure the bandwidth
    )


def _bandwidth_ratios(header: RooflineHeader, threads: Threads) -> dict[str, float]:
    """The bandwidths / vanilla's of methods with their own number of CPU threads.

    All of `bandwidth_by_threads` were measured before the run.
    """
    by_threads = header.bandwidth_by_threads
    vanilla_bandwidth = by_threads.get(str(threads.num))
    ratios = {}
    for method, num_threads in threads.own.items():
        bandwidth = by_threads.get(str(num_threads))
        if bandwidth is not None and vanilla_bandwidth is not None:
            ratios[method] = bandwidth / vanilla_bandwidth
    return ratios


def _mean_context(records: Iterable[Record]) -> float:
    """Tokens in the cache at vanilla's mean step."""
    tokens = steps = 0.0
    for record in records:
        if record.key.method == BASELINE:
            num_steps = len(record.accept_lengths)
            # The cache grows by a token per step: (n + 1) / 2 on average beyond the prompt.
            tokens += num_steps * (record.prompt_tokens + (num_steps + 1) / 2)
            steps += num_steps
    return tokens / steps if steps else 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of one cell. The first four are over completions that vanilla has too."""

    mat: Value

    step_s: Value
    """The decode time of a step in seconds."""

    relative: Value
    """`step_s` / vanilla's."""

    decode_speedup: Value
    """`mat / relative`."""

    phases: Phases | None
    """Seconds per step."""

    bound: Value
    """The bandwidth bound: the decode speedup that memory bandwidth allows (see `Roofline`)."""

    reached: Value
    """The measured share of the bandwidth bound."""

    joules_per_token: Value
    """Energy of the whole card, prefill included."""

    peak_memory_bytes: int | None
    """The most allocated during a completion, without what only other methods needed."""

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
    """The costs of a cell: a method at one temperature on one task, with its rows of the table.

    `rows` are numbers of records. `roofline` gives the bandwidth bound of the speedup. `no_times`
    is the reason why times are not evidence of speed, if they are not: the cost of a step remains,
    speedups do not.
    """
    (is_measured,) = table.values(rows, "is_measured")
    done_rows = rows[is_measured]
    num_steps, decode_s, base_num_steps, base_decode_s = table.values(
        done_rows, "num_steps", "decode_s", "baseline_num_steps", "baseline_decode_s"
    )
    has_decoded = (num_steps > 0) & (decode_s > 0)
    is_paired = has_decoded & (base_num_steps > 0) & (base_decode_s > 0)
    # Completions that vanilla has too, or all if it has none: [done rows].
    is_counted = is_paired if is_paired.any() else has_decoded

    no_steps = NO_STEPS
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
    bound = roofline.bound(key.method, mat) if isinstance(roofline, Roofline) else NO_BANDWIDTH
    return Cost(
        mat=mat,
        step_s=step_s,
        relative=relative_cost,
        decode_speedup=decode_speedup,
        phases=_phases(table, done_rows[is_counted]),
        bound=bound,
        reached=_quotient(decode_speedup, bound),
        joules_per_token=_joules_per_token(table, done_rows),
        peak_memory_bytes=_peak_memory_bytes(table, done_rows),
    )


def _quotient(top: Value, bottom: Value) -> Value:
    """top / bottom, or the reason of the one that is missing."""
    if isinstance(top, Missing):
        return top
    if isinstance(bottom, Missing):
        return bottom
    return Estimate(top.value / bottom.value)


def _joules_per_token(table: RecordTable, rows: IntArray) -> Value:
    """Energy per token, over the records whose energy was measured."""
    joules, num_tokens = table.values(rows, "energy_j", "num_tokens")
    is_metered = ~np.isnan(joules)
    if not is_metered.any():
        return NOT_MEASURED
    return Estimate(float(joules[is_metered].sum() / num_tokens[is_metered].sum()))


def _peak_memory_bytes(table: RecordTable, rows: IntArray) -> int | None:
    (peaks,) = table.values(rows, "peak_memory_bytes")
    is_metered = ~np.isnan(peaks)
    return int(peaks[is_metered].max()) if is_metered.any() else None


def _phases(table: RecordTable, rows: IntArray) -> Phases | None:
    """Seconds per step, over the records that have phases."""
    num_steps, *phase_times = table.values(rows, "num_steps", *PHASES)
    has_phases = ~np.isnan(phase_times[0])
    if not has_phases.any():
        return None
    num_steps_timed = num_steps[has_phases].sum()
    per_step = (seconds[has_phases].sum() / num_steps_timed for seconds in phase_times)
    return Phases(*map(float, per_step))
