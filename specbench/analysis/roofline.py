"""The limit of a speedup on a machine: the time to read the weights from memory.

At batch 1 a step computes little for each weight that it reads, so no step is faster than its bytes
/ the memory bandwidth. A step of vanilla reads the target's weights; a speculative step reads the
target's and the drafter's. Hence

    limit = MAT * target bytes / (target bytes + draft bytes)

times the bandwidth with the method's CPU threads / with vanilla's, if their numbers differ.

In a mixture of experts, the target's bytes are what one row reads. Several rows choose more
experts, at most all, so trees stay further below their limit than with a dense model.

Keys and values are left out. Every method's target forward reads nearly the same ones, so they
change the limit by a fraction of their own share (`kv_share`), a few percent for the papers'
prompts. If the weights fit into the processor's cache, this limit does not hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from specbench.analysis.records import BASELINE
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.log.backend import RooflineHeader
from specbench.log.machine import Threads
from specbench.types import Record

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
