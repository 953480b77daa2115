"""The bandwidth bound of a speedup, from the time to read the weights from memory.

At batch 1 a step computes little for each weight that it reads, so no step is faster than its
bytes / the memory bandwidth. A step of vanilla reads the target's weights; a speculative step reads
the target's and the drafter's. The measured bandwidth is a sample: if vanilla's steps read faster,
there is no bound. Hence

    bandwidth bound = MAT * target bytes / (target bytes + draft bytes)

times the bandwidth with the method's CPU threads / with vanilla's, if their numbers differ.

In a mixture of experts, the target's bytes are what one row reads. Several rows choose more
experts, at most all, so trees stay further below their bound than with a dense model.

Keys and values are left out. The target forwards of all methods read nearly the same keys and
values. Their bytes would change the bound by less than their share (`kv_share`), which is a few
percent for the papers' prompts. If the weights fit into the processor's cache, this bound does not
hold.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from specbench.analysis.records import BASELINE
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.analysis.warnings import RunWarning
from specbench.log.backend import RooflineHeader
from specbench.log.header import RunHeader
from specbench.log.machine import Threads
from specbench.types import Record

NO_BANDWIDTH = Missing("bandwidth not measured")
IN_CACHE = Missing("weights fit the cache")
EXPERTS = Missing("mixture of experts")
ABOVE = Missing("above the measured bandwidth")
"""Vanilla's steps read faster than the measured bandwidth, so it is not a bound."""
UNKNOWN_DRAFT = Missing("draft bytes unknown")

CACHE_MARGIN = 2.0
"""Weights up to this many times the cache's size set no bound, since part of them stays in it."""
MOST_VANILLA = 1.25
"""Largest ratio of vanilla's step to a step of one row, timed in turn, that causes no warning."""
LEAST_SHARE = 0.6
"""Vanilla is a slow baseline if it uses less than this share of the bandwidth."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Memory speed of a run's machine and bytes that its steps read."""

    bandwidth: float
    """The measured memory bandwidth in bytes/s."""

    target_bytes: int
    """Bytes of the target's weights that a step reads."""

    cache_bytes: int
    """The size of the last-level cache, 0 if unknown."""

    draft_bytes: Mapping[str, float]
    """A method's spelling -> bytes that its drafts read per step; absent if unknown."""

    kv_share: float
    """The bytes of keys and values / the bytes of weights, in vanilla's mean step."""

    no_bound: Missing | None = None
    """The reason if there is no bandwidth bound."""

    speedups: Mapping[str, float] = field(default_factory=dict)
    """Bandwidth / vanilla's of each method with its own number of CPU threads, by its spelling."""

    block_bytes: int = 0
    """The bytes read or copied to measure the bandwidth, 0 if unknown."""

    copy_bandwidth: float = 0.0
    """Bytes/s of a GPU's copies, 0 on a CPU. Older runs measured copies alone: they have 0 too."""

    nominal_bandwidth: float = 0.0
    """Bytes/s by the memory's clock and bus width, 0 if unknown."""

    least_bandwidth: float = 0.0
    """The smallest measured bandwidth, in bytes/s. `bandwidth` is the largest."""

    def step_bytes(self, method: str) -> float:
        """The bytes of weights that a step of a method reads; 0 if unknown."""
        if self.no_bound in (IN_CACHE, EXPERTS) or method not in self.draft_bytes:
            return 0.0
        return self.target_bytes + self.draft_bytes[method]

    def bound(self, method: str, mat: Value) -> Value:
        """The bandwidth bound of a method's decode speedup at its MAT.

        It is MAT * target bytes / (target bytes + draft bytes), times the bandwidth with the
        method's number of CPU threads / with vanilla's. A missing bound has its reason.
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
        """The share of the measured bandwidth that vanilla uses, whose mean step takes `step_s`."""
        if self.no_bound:
            return self.no_bound
        if isinstance(step_s, Missing):
            return step_s
        return Estimate(self.target_bytes / (step_s.value * self.bandwidth))


def read_roofline(
    header: RooflineHeader | None, records: Iterable[Record], threads: Threads | None = None
) -> Roofline | Missing:
    """The memory speed of a run's machine and the bytes that its steps read.

    `header` has the measured bandwidth and the bytes of weights; `records` are the run's, whose
    steps of vanilla show if the bandwidth is a bound. On a CPU, `threads` has the run's number of
    threads, and the numbers of methods that use another one. `Missing` without a measured
    bandwidth.
    """
    if header is None or header.bandwidth_bytes_per_s <= 0 or header.target_bytes <= 0:
        return NO_BANDWIDTH
    # A step of a mixture of experts does not read all weights of the target.
    target_bytes = header.target_bytes - header.unread_bytes
    no_bound = None  # the reason if the bandwidth sets no bound
    if target_bytes <= CACHE_MARGIN * header.cache_bytes:
        no_bound = IN_CACHE
    elif header.is_mixture_of_experts and not header.unread_bytes:
        no_bound = EXPERTS  # it is unknown how many experts a step reads
    elif target_bytes > _vanilla_step_s(records) * header.bandwidth_bytes_per_s > 0:
        no_bound = ABOVE  # vanilla's steps read more bytes in their time than the bandwidth allows
    return Roofline(
        bandwidth=header.bandwidth_bytes_per_s,
        target_bytes=target_bytes,
        cache_bytes=header.cache_bytes,
        draft_bytes=header.draft_bytes,
        kv_share=header.kv_bytes_per_token * _mean_context(records) / target_bytes,
        no_bound=no_bound,
        speedups=_bandwidth_ratios(header, threads) if threads else {},
        block_bytes=header.block_bytes,  # read or copied to measure the bandwidth
        copy_bandwidth=header.copy_bytes_per_s,
        nominal_bandwidth=header.nominal_bytes_per_s,
        least_bandwidth=min(header.bandwidth_samples, default=header.bandwidth_bytes_per_s),
    )


def _bandwidth_ratios(header: RooflineHeader, threads: Threads) -> dict[str, float]:
    """Memory bandwidth with a method's own number of CPU threads / with vanilla's, by method.

    A method is absent if it uses vanilla's number of threads, or if either bandwidth was not
    measured. `threads` has the run's number of threads, which vanilla uses, and the numbers of the
    methods that use another one.
    """
    by_threads = header.bandwidth_by_threads  # number of threads, as a text -> bytes/s
    vanilla_bandwidth = by_threads.get(str(threads.num))
    ratios = {}
    for method, num_threads in threads.own.items():
        bandwidth = by_threads.get(str(num_threads))
        if bandwidth is not None and vanilla_bandwidth is not None:
            ratios[method] = bandwidth / vanilla_bandwidth
    return ratios


def _vanilla_step_s(records: Iterable[Record]) -> float:
    """Mean seconds of vanilla's steps; 0 without any."""
    seconds = num_steps = 0.0
    for record in records:
        if record.key.method == BASELINE and record.decode_s:
            seconds += record.decode_s
            num_steps += len(record.accept_lengths)
    return seconds / num_steps if num_steps else 0.0


def _mean_context(records: Iterable[Record]) -> float:
    """Mean number of tokens in the cache over all steps of vanilla; 0 without any."""
    tokens = steps = 0.0  # sums over the steps: tokens in the cache, and 1
    for record in records:
        if record.key.method == BASELINE:
            num_steps = len(record.accept_lengths)
            # The cache grows by a token per step. In n steps, it has (n + 1) / 2 tokens on average
            # beyond the prompt.
            tokens += num_steps * (record.prompt_tokens + (num_steps + 1) / 2)
            steps += num_steps
    return tokens / steps if steps else 0.0


def slow_steps(header: RunHeader) -> Iterator[RunWarning]:
    """Yield a warning if vanilla's steps take longer than steps of one row without a method.

    Both kinds of steps were timed in turns, before and after the run; both ratios of their times
    have to be above MOST_VANILLA. A model that fits into the processor's cache is not judged: other
    methods change the cache, and so the times of its steps.
    """
    roofline = header.roofline
    if roofline is None or roofline.target_bytes <= CACHE_MARGIN * roofline.cache_bytes:
        return
    ratios = roofline.vanilla_ratios  # seconds of vanilla's step / seconds of a plain step
    if len(ratios) > 1 and min(ratios) > MOST_VANILLA:
        yield RunWarning("slow_steps", {"ratio": min(ratios)})
