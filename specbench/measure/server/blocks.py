"""Divide a run's requests to servers into blocks, and send the requests of a block at its load.

A block has the requests of one method on one task at one load. Each pass begins with another
method, so that drift of the machine affects all methods alike.
"""

import asyncio
import random
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, cycle
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from specbench.analysis.grouping import group_by
from specbench.log.backend import BlockHeader
from specbench.log.run import Load
from specbench.measure.base import Plan, Sample
from specbench.types import Record, RecordKey

Complete = Callable[[Sample], Coroutine[Any, Any, None]]
"""Completes a sample."""
Repeat = Callable[[Sample], Coroutine[Any, Any, bool]]
"""Completes a sample again, without making records. False if that failed."""


@dataclass(frozen=True)
class Block:
    """The samples of one method on one task, in one pass at one temperature and load."""

    method: str
    """The method's label."""
    samples: tuple[Sample, ...]
    """The samples, of which there is at least one."""

    @property
    def first(self) -> Sample:
        """A sample with the block's task, pass, temperature and load."""
        return self.samples[0]

    @cached_property
    def keys(self) -> tuple[RecordKey, ...]:
        """The keys of the block's records."""
        return tuple(key for sample in self.samples for key in sample.keys(self.method))


class BlockClock:
    """Measures the time of a block: the seconds in which at least one request is in flight.

    A request is in flight from when it is sent to its last token. Later events, such as a count of
    tokens, and the client's work between requests do not add to the time. With `has_rate`, requests
    come at random times, and the time goes from the start of the block to the last token.
    """

    def __init__(self, *, has_rate: bool) -> None:
        self._has_rate = has_rate
        self._spans: list[tuple[float, float]] = []  # (sent, ended) of each request
        self._cpu_began = thread_time()  # CPU seconds at the start, plus the untimed CPU seconds
        self.began = perf_counter()

    def add(self, sent: float, ended: float) -> None:
        """Add a request, with the times of `perf_counter` at which it was sent, and ended."""
        self._spans.append((sent, ended))

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Leave a block of code, such as writing records, out of the client's time."""
        cpu_now = thread_time()
        yield
        self._cpu_began += thread_time() - cpu_now

    @property
    def duration_s(self) -> float:
        """The seconds of the block, or 0 if no request was sent, or the clock went back.

        At a rate, these are the seconds from the start of the block to the end of the last request.
        Otherwise they are the seconds during which at least one request was in flight.
        """
        if self._has_rate:
            last_end = max((ended for _, ended in self._spans), default=0.0)
            return max(0.0, last_end - self.began)
        duration_s = 0.0
        counted_until = self.began  # all spans up to this time are counted
        for sent, ended in sorted(self._spans):  # requests may overlap
            duration_s += max(0.0, ended - max(sent, counted_until))
            counted_until = max(counted_until, ended)
        return duration_s

    @property
    def client_s(self) -> float:
        """The CPU seconds of the client (this thread) in the block, without the untimed ones."""
        return thread_time() - self._cpu_began


def block_header(
    block: Block,
    clock: BlockClock,
    records: Sequence[Record],
    client_s: float,
    counters: Mapping[str, float],
) -> BlockHeader:
    """The header of a block that was measured.

    `records` are its new records. The header's `num_before` counts those from earlier parts of the
    run. `client_s` are CPU seconds of the client. `counters` has the growth of the server's
    counters.
    """
    first = block.first
    return BlockHeader(
        method=block.method,
        temperature=first.temperature,
        task=first.task,
        repeat=first.repeat,
        duration_s=round(clock.duration_s, 6),
        num_requests=len(records),
        num_failed=sum(not record.is_ok for record in records),
        num_tokens=sum(record.num_tokens for record in records),
        num_before=len(block.keys) - len(records),
        client_s=round(client_s, 6),
        concurrency=first.load.concurrency,
        request_rate=float(first.load.request_rate),
        counters=dict(counters),
    )


def blocks(plan: Plan, *, is_one_at_a_time: bool) -> Iterator[Block]:
    """All blocks of a plan in order. A block has the samples of a cell for one method.

    A sample is a prompt with its turns. A cell is one pass over the prompts (`repeat`, from 0) at
    one temperature, task and load (requests at once or per second). Each method has a server.

    The methods take turns. If their servers run side by side, all methods complete a cell before
    the next cell begins. With `is_one_at_a_time`, only one server is up: it gets all cells of a
    pass, then the next server is started.
    """
    labels = list(plan.setup.labels)  # of the methods
    samples_by_cell = group_by(
        plan.samples,
        key=lambda sample: (sample.repeat, sample.temperature, sample.task, sample.load),
    )
    for pass_number in range(plan.repeats):  # the number of passes
        cells_of_pass = [  # the samples of each cell
            tuple(samples)
            for samples in samples_by_cell.values()
            if samples[0].repeat == pass_number
        ]
        # The labels, rotated by one per pass: pass 0 begins with the first, pass 1 with the last.
        num_moved = -pass_number % len(labels)
        order = labels[num_moved:] + labels[:num_moved]
        if is_one_at_a_time:
            for label in order:
                for samples in cells_of_pass:
                    yield Block(label, samples)
        else:
            for samples in cells_of_pass:
                for label in order:
                    yield Block(label, samples)


async def at_load(
    load: Load,
    samples: Sequence[Sample],
    seed: int,
    complete: Complete,
    block_samples: Sequence[Sample],
    repeat: Repeat,
) -> None:
    """Complete samples of a block at its load, and repeat its other samples to keep the load.

    A resumed run already has the records of some samples of a block. These samples are repeated, so
    that the server is as busy as with all samples. At a request rate, each is repeated at its time.
    At a concurrency, they fill the places that `samples` leave free.

    Args:
        load: samples at once (`concurrency`), or samples per second (`request_rate`). The other of
            the two is 0.
        samples: the samples to complete.
        seed: draws the random times of the samples at a rate.
        complete: completes a sample.
        block_samples: all samples of the block, in order.
        repeat: completes a sample again, without making records. False if that failed.
    """
    unfinished = {sample.key(0) for sample in samples}  # the keys of their first turns
    if load.request_rate:
        drawn = arrivals(block_samples, load.request_rate, seed)  # each sample with its time
        missing = [arrival for arrival in drawn if arrival.sample.key(0) in unfinished]
        repeated = [arrival for arrival in drawn if arrival.sample.key(0) not in unfinished]
        async with beside([at_times(repeated, repeat)]):
            await at_times(missing, complete)
        return
    # The number of places that `samples` leave free, which the other samples fill again and again.
    num_beside = max(0, min(load.concurrency, len(block_samples)) - len(samples))
    endless = cycle(sample for sample in block_samples if sample.key(0) not in unfinished)
    async with beside(repeat_on(endless, repeat) for _ in range(num_beside)):
        await closed_loop(samples, load.concurrency, complete)


@asynccontextmanager
async def beside(coroutines: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run coroutines while the code in the `async with` block runs, and cancel them at its end."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.sleep(0)  # lets the tasks send their first requests
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def repeat_on(samples: Iterator[Sample], repeat: Repeat) -> None:
    """Repeat one sample after the other until one fails."""
    while await repeat(next(samples)):
        pass


async def closed_loop(samples: Sequence[Sample], concurrency: int, complete: Complete) -> None:
    """Complete `concurrency` samples at once. When a sample is done, the next one begins."""
    waiting = iter(samples)

    async def worker() -> None:
        for sample in waiting:
            await complete(sample)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(samples))):
            group.create_task(worker())


class Arrival(NamedTuple):
    """A sample of a block at a request rate."""

    due_s: float
    """The seconds after the block's start at which it begins."""
    sample: Sample
    """The sample."""


def arrivals(samples: Sequence[Sample], rate: float, seed: int) -> list[Arrival]:
    """The samples with random times at which they begin, at `rate` per second on average.

    The times between them are drawn from an exponential distribution, so they are a Poisson
    process.
    """
    generator = random.Random(seed)
    times_s = accumulate(generator.expovariate(rate) for _ in samples)
    return [Arrival(due_s, sample) for due_s, sample in zip(times_s, samples, strict=True)]


async def at_times(arriving: Sequence[Arrival], complete: Complete | Repeat) -> None:
    """Begin each sample at its time, without waiting for earlier ones, and complete all."""
    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for arrival in arriving:
            await asyncio.sleep(max(0.0, began + arrival.due_s - perf_counter()))
            group.create_task(complete(arrival.sample))
