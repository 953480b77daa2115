"""Blocks of requests to servers, each of one method on one task at one load.

Servers answer several requests at once. Each pass begins with another method, so that drift of
the machine affects all methods alike.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter, thread_time
from typing import Any

from specbench.log.backend import BlockHeader
from specbench.measure.base import Plan, Sample
from specbench.types import Record, RecordKey

Work = Callable[[Sample], Coroutine[Any, Any, None]]
"""Completes a sample."""


@dataclass(frozen=True)
class Block:
    """The samples of one method on one task, in one pass at one temperature and load."""

    method: str
    """The method."""
    samples: tuple[Sample, ...]
    """At least one sample."""

    @property
    def first(self) -> Sample:
        """A sample with the block's task, pass, temperature and load."""
        return self.samples[0]

    @cached_property
    def keys(self) -> tuple[RecordKey, ...]:
        """The keys of the block's records."""
        return tuple(key for sample in self.samples for key in sample.keys(self.method))


class BlockClock:
    """The time of a block, without that of other work between requests.

    That is to write records and to read counters. With `has_rate`, requests come at fixed times, so
    this work does not lengthen the block and nothing is subtracted.
    """

    def __init__(self, *, has_rate: bool) -> None:
        self._has_rate = has_rate
        self._untimed_s = 0.0
        self._cpu_began = thread_time()
        self.began = perf_counter()
        self._ended = self.began

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Do other work, while no request is under way."""
        cpu_now = thread_time()
        now = perf_counter()
        self._ended = now - self._untimed_s
        yield
        self._cpu_began += thread_time() - cpu_now
        if not self._has_rate:
            self._untimed_s += perf_counter() - now

    @property
    def duration_s(self) -> float:
        """Seconds from the start to the last answer; 0 (unknown) if the clock went back."""
        return max(0.0, self._ended - self.began)

    @property
    def client_s(self) -> float:
        """CPU seconds of the client."""
        return thread_time() - self._cpu_began


def block_header(
    block: Block,
    clock: BlockClock,
    records: Sequence[Record],
    client_s: float,
    counters: Mapping[str, float],
) -> BlockHeader:
    """The description of a block that was measured.

    `records` are its new ones: `num_before` were made in earlier parts of the run. `client_s` are
    CPU seconds of this process, and `counters` the growth of the server's counters.
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
    """All blocks in order. A block has the samples of one cell, for one method.

    A sample is a prompt with its turns. A cell is a pass over the prompts (`repeat`, from 0), a
    temperature, a task and a load (requests at once or per second). Each method, named by its
    label, has a server. With `is_one_at_a_time`, servers are started in turn, and only one runs.

    The methods take turns: on each task and load if their servers run side by side, else once
    per pass, since a server that has to be started answers all tasks.
    """
    labels = list(plan.setup.labels)
    samples_by_cell: dict[tuple[object, ...], list[Sample]] = {}
    for sample in plan.samples:
        cell = (sample.repeat, sample.temperature, sample.task, sample.load)
        samples_by_cell.setdefault(cell, []).append(sample)
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


async def closed_loop(samples: Sequence[Sample], concurrency: int, work: Work) -> None:
    """Work on `concurrency` samples at once. When one is done, the next one begins."""
    waiting = iter(samples)

    async def worker() -> None:
        for sample in waiting:
            await work(sample)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(samples))):
            group.create_task(worker())


async def at_rate(samples: Sequence[Sample], rate: float, seed: int, work: Work) -> None:
    """Begin `rate` samples per second on average, without waiting for earlier ones to finish.

    The times between them are exponential (a Poisson process), drawn with the seed. A sample is a
    prompt with its turns; `work(sample)` is a coroutine that completes it. Returns when all are
    complete.
    """
    generator = random.Random(seed)
    began = perf_counter()
    due_s = 0.0  # when a sample begins, in seconds after `began`
    async with asyncio.TaskGroup() as group:
        for sample in samples:
            due_s += generator.expovariate(rate)  # seconds since the sample before
            await asyncio.sleep(max(0.0, began + due_s - perf_counter()))
            group.create_task(work(sample))
