"""Compute the bandwidth bound of a speedup, from the time to read the weights from memory.

At batch 1 a step computes little for each weight that it reads, so no step is faster than its
bytes / the memory bandwidth. A step of vanilla reads the target's weights; a speculative step reads
the target's and the drafter's. The measured bandwidth may be too low: if vanilla's steps read
faster, there is no bound. Hence

    bandwidth bound = MAT * target bytes / (target bytes + draft bytes)

times the bandwidth with the method's CPU threads / with vanilla's, if their numbers differ.

In a mixture of experts, the target's bytes are those that one row reads. Several rows choose more
experts, up to all of them, so trees stay further below their bound than with a dense model.

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
"""Weights up to this many times the cache's size set no bound, since some of them stay in it."""
MOST_VANILLA = 1.25
"""There is a warning if vanilla's step takes more than this many times as long as a plain step."""
LEAST_SHARE = 0.6
"""Vanilla is a slow baseline if it uses less than this share of the measured bandwidth."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The memory bandwidth of a run's machine, and the bytes that its steps read."""

    bandwidth: float
    """The measured memory bandwidth in bytes/s."""

    target_bytes: int
    """The bytes of the target's weights that a step reads."""

    cache_bytes: int
    """The size of the processor's last-level cache, in bytes; 0 if unknown."""

    draft_bytes: Mapping[str, float]
    """Method with its options -> bytes that its drafts read per step; absent if unknown."""

    kv_share: float
    """The bytes of keys and values / the bytes of weights, in vanilla's mean step."""

    no_bound: Missing | None = None
    """The reason if there is no bandwidth bound, else None."""

    speedups: Mapping[str, float] = field(default_factory=dict)
    """Method with its options -> bandwidth with its number of CPU threads / with vanilla's."""

    block_bytes: int = 0
    """The bytes that were read or copied to measure the bandwidth; 0 if unknown."""

    copy_bandwidth: float = 0.0
    """Bytes/s of copies on a GPU. 0 on a CPU, and in older runs, whose `bandwidth` is of copies."""

    nominal_bandwidth: float = 0.0
    """The bandwidth in bytes/s that the memory's clock and bus width give; 0 if unknown."""

    least_bandwidth: float = 0.0
    """The smallest measured bandwidth, in bytes/s. `bandwidth` is the largest."""

    def step_bytes(self, method: str) -> float:
        """Compute the bytes of weights that a step of a method reads; 0 if unknown."""
        if self.no_bound in (IN_CACHE, EXPERTS) or method not in self.draft_bytes:
            return 0.0
        return self.target_bytes + self.draft_bytes[method]

    def bound(self, method: str, mat: Value) -> Value:
        """Compute the bandwidth bound of a method's decode speedup at its MAT.

        It is MAT * target bytes / (target bytes + draft bytes), times the bandwidth with the
        method's number of CPU threads / with vanilla's. If there is no bound, the result is the
        reason.
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
        """Compute the share of the measured bandwidth that vanilla uses.

        `step_s` is the mean time of vanilla's steps, in seconds.
        """
        if self.no_bound:
            return self.no_bound
        if isinstance(step_s, Missing):
            return step_s
        return Estimate(self.target_bytes / (step_s.value * self.bandwidth))


def read_roofline(
    header: RooflineHeader | None, records: Iterable[Record], threads: Threads | None = None
) -> Roofline | Missing:
    """Read the memory bandwidth of a run's machine, and the bytes that its steps read.

    `header` has the measured bandwidth and the bytes of weights. In the run's `records`, the times
    of vanilla's steps show if the bandwidth is a bound. On a CPU, `threads` has the run's number of
    threads, and the number of each method that uses another. The result is `Missing` without a
    measured bandwidth.
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
    """Divide the bandwidth with a method's own number of CPU threads by vanilla's, by method.

    A method is absent if it uses vanilla's number of threads, or if either bandwidth was not
    measured. `threads` has the run's number of threads, which vanilla uses, and the number of each
    method that uses another.
    """
    by_threads = header.bandwidth_by_threads  # number of threads, as a text -> bytes/s
    vanilla_bandwidth = by_threads.get(str(threads.num))
    if vanilla_bandwidth is None:
        return {}
    return {
        method: by_threads[str(num_threads)] / vanilla_bandwidth
        for method, num_threads in threads.own.items()
        if str(num_threads) in by_threads
    }


def _vanilla_step_s(records: Iterable[Record]) -> float:
    """Compute the mean seconds of vanilla's steps; 0 if it has none."""
    timed = [record for record in records if record.key.method == BASELINE and record.decode_s]
    decode_s = sum(record.decode_s or 0.0 for record in timed)
    num_steps = sum(len(record.accept_lengths) for record in timed)  # an accept length per step
    return decode_s / num_steps if num_steps else 0.0


def _mean_context(records: Iterable[Record]) -> float:
    """Compute the mean number of tokens in the cache over the steps of vanilla; 0 without steps."""
    vanilla_records = [record for record in records if record.key.method == BASELINE]
    steps = [len(record.accept_lengths) for record in vanilla_records]  # an accept length per step
    # The cache grows by a token per step. In n steps, it has (n + 1) / 2 tokens on average beyond
    # the prompt.
    cached_tokens = sum(  # over all steps
        num_steps * (record.prompt_tokens + (num_steps + 1) / 2)
        for record, num_steps in zip(vanilla_records, steps, strict=True)
    )
    return cached_tokens / sum(steps) if any(steps) else 0.0


def slow_steps(header: RunHeader) -> Iterator[RunWarning]:
    """Yield a warning if vanilla's steps take longer than plain steps of one row.

    Both kinds of steps were timed alternately, before and after the run. The ratio of times must
    be above MOST_VANILLA both times. A model that fits into the processor's cache is not judged,
    since other methods change what is in the cache, and so the times of its steps.
    """
    roofline = header.roofline
    if roofline is None or roofline.target_bytes <= CACHE_MARGIN * roofline.cache_bytes:
        return
    ratios = roofline.vanilla_ratios  # seconds of vanilla's step / seconds of a plain step
    if len(ratios) > 1 and min(ratios) > MOST_VANILLA:
        yield RunWarning("slow_steps", {"ratio": min(ratios)})
