"""Servers as a backend: blocks of requests, each of one method on one task at one load.

Servers answer several requests at once. Each repeat begins with another method, so that drift
of the machine affects all methods alike.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter, thread_time
from typing import Any, Self, TypeVar

from specbench.errors import SpecbenchError, describe_error
from specbench.log.backend import BlockHeader
from specbench.measure.base import BackendInfo, Log, Plan, Progress, Sample
from specbench.measure.requests import make_chat, make_request, reply_key, token_ends
from specbench.measure.server.client import increase
from specbench.measure.server.records import make_record
from specbench.measure.server.servers import OpenServer, ServerSource
from specbench.measure.server.stream import ChatRequest, RequestFailed
from specbench.types import Record, RecordKey, Request, seed_of

WARM_UP_TOKENS = 32
SETTLE_S = 0.05
"""Seconds that a server has to bring its counters up to date."""

T = TypeVar("T")
Work = Callable[[Sample], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Block:
    """The samples of one method on one task, in one repeat at one temperature and load."""

    method: str
    samples: tuple[Sample, ...]

    @property
    def first(self) -> Sample:
        return self.samples[0]

    @cached_property
    def keys(self) -> tuple[RecordKey, ...]:
        return tuple(key for sample in self.samples for key in sample.keys(self.method))


class BlockClock:
    """The time of a block, without the time in which records are written between requests.

    With `has_rate`, requests come at fixed times, so writing does not lengthen the block and
    nothing is subtracted.
    """

    def __init__(self, *, has_rate: bool) -> None:
        self._has_rate, self._written_s = has_rate, 0.0
        self._cpu_began, self.began = thread_time(), perf_counter()
        self._ended = self.began

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write records, while no request is under way."""
        cpu, now = thread_time(), perf_counter()
        self._ended = now - self._written_s
        yield
        self._cpu_began += thread_time() - cpu
        if not self._has_rate:
            self._written_s += perf_counter() - now

    @property
    def duration_s(self) -> float:
        """Seconds from the start to the last answer."""
        return self._ended - self.began

    @property
    def client_s(self) -> float:
        """CPU seconds of the client."""
        return thread_time() - self._cpu_began


def blocks(plan: Plan, *, is_one_at_a_time: bool) -> Iterator[Block]:
    """All blocks in order.

    The methods take turns: on each task and load if their servers run side by side, else once
    a repeat, since a server that has to be started answers all tasks.
    """
    labels = list(plan.setup.labels)
    groups: dict[tuple[object, ...], list[Sample]] = {}
    for sample in plan.samples:
        key = (sample.repeat, sample.temperature, sample.task, sample.load)
        groups.setdefault(key, []).append(sample)
    cells = [tuple(group) for group in groups.values()]
    for repeat in range(plan.repeats):
        own = [cell for cell in cells if cell[0].repeat == repeat]
        shift = -repeat % len(labels)
        order = labels[shift:] + labels[:shift]
        if is_one_at_a_time:
            yield from (Block(label, cell) for label in order for cell in own)
        else:
            yield from (Block(label, cell) for cell in own for label in order)


@dataclass(slots=True)
class BlockRunner:
    """Completes a plan's samples with servers, except those that are done.

    Records are written and progress is reported while no request is under way: both take time
    that would count as the server's.
    """

    plan: Plan
    backend: ServerBackend
    log: Log
    progress: Progress
    _known: dict[RecordKey, Record] = field(default_factory=dict)
    _unwritten: list[Record] = field(default_factory=list)

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run all blocks. Yields each new record after its block is stored."""
        self._known = {record.key: record for record in done}
        order = blocks(self.plan, is_one_at_a_time=self.backend.source.is_one_at_a_time)
        repeat = 0
        for block in order:
            missing = [key for key in block.keys if key not in self._known]
            if missing:
                if block.first.repeat != repeat:
                    repeat = block.first.repeat
                    self.backend.run(self.backend.source.end_pass())
                try:
                    self.backend.run(self._block(block))
                except BaseExceptionGroup as group:
                    raise group.exceptions[0] from None
                self.log.changed()
                yield from (self._known[key] for key in missing)

    async def _block(self, block: Block) -> None:
        try:
            server = await self.backend.open(block.method)
        except SpecbenchError as error:
            for key in block.keys:
                if key not in self._known:
                    self._keep(self._failed(key, 0, error))
            self._write()
            return
        first = block.first
        load, seed = first.load, self.plan.spec.seed
        todo = [one for one in block.samples if {*one.keys(block.method)} - self._known.keys()]
        before, num_before = await server.counters(), len(self._known)
        clock, num_active = BlockClock(has_rate=bool(load.request_rate)), 0

        async def work(sample: Sample) -> None:
            """The turns of a sample, one after the other."""
            nonlocal num_active
            if not num_active:
                self.progress.sample_started(block.method, sample.task, sample.prompt.sample_id)
            num_active += 1
            for key in sample.keys(block.method):
                if key not in self._known:
                    self._keep(await self._complete(server, key, sample, began=clock.began))
            num_active -= 1
            if not num_active:
                with clock.writing():
                    self._write()

        if load.request_rate:
            await _at_rate(todo, load.request_rate, seed + first.repeat, work)
        else:
            await _closed_loop(todo, load.concurrency, work)
        client_s = clock.client_s
        if before:
            await asyncio.sleep(SETTLE_S)
        new = list(self._known.values())[num_before:]
        self.backend.blocks.append(
            BlockHeader(
                method=block.method,
                temperature=first.temperature,
                task=first.task,
                repeat=first.repeat,
                duration_s=round(clock.duration_s, 6),
                num_requests=len(new),
                num_failed=sum(not record.is_ok for record in new),
                num_tokens=sum(record.num_tokens for record in new),
                num_before=len(block.keys) - len(new),
                client_s=round(client_s, 6),
                concurrency=load.concurrency,
                request_rate=float(load.request_rate),
                counters=increase(before, await server.counters()) if before else {},
            )
        )

    async def _complete(
        self, server: OpenServer, key: RecordKey, sample: Sample, *, began: float
    ) -> Record:
        """One record. Whatever goes wrong becomes an error record, and the run goes on."""
        num_prompt_tokens = 0
        try:
            messages = make_chat(sample.prompt.turns[: key.turn + 1], self._replies(key))
            prompt_ids = self.plan.setup.codec.render(messages)
            num_prompt_tokens = len(prompt_ids)
            request = make_request(self.plan, prompt_ids, key.request)
            answer = await server.complete(ChatRequest(request, messages))
            return make_record(
                key,
                request,
                answer,
                self.plan.setup.codec,
                began=began,
                is_prompt_sent=server.found.protocol.takes_tokens,
                draft_length=server.draft_length,
            )
        except Exception as error:  # of a server, a template or a tokenizer
            failed = self._failed(key, num_prompt_tokens, error)
            death = await server.wait_for_death() if server.client.dead_reason else server.death()
            return replace(failed, error=f"{failed.error} {death}") if death else failed

    def _failed(self, key: RecordKey, num_prompt_tokens: int, error: Exception) -> Record:
        text = error.message if isinstance(error, SpecbenchError) else describe_error(error)
        seed = seed_of(self.plan.spec.seed, key.request)
        return Record(key, "error", num_prompt_tokens, seed=seed, error=text)

    def _replies(self, key: RecordKey) -> Sequence[Record]:
        """Replies to the earlier turns."""
        own = reply_key(self.plan.spec, self.plan.setup.labels[0], key)
        earlier = (self._known.get(replace(own, turn=turn)) for turn in range(key.turn))
        return [record for record in earlier if record is not None]

    def _keep(self, record: Record) -> None:
        self._known[record.key] = record
        self._unwritten.append(record)

    def _write(self) -> None:
        """Write the records so far, and report progress."""
        records, self._unwritten = self._unwritten, []
        for record in records:
            ends = token_ends(self.plan.setup.codec, record.token_ids, record.text)
            whole = replace(record, token_ends=ends)
            self._known[record.key] = whole
            self.log.append(whole)
            self.progress.sample_finished(whole)


async def _closed_loop(samples: Sequence[Sample], concurrency: int, work: Work) -> None:
    """Work on `concurrency` samples at once. When one is done, the next one begins."""
    waiting = iter(samples)

    async def worker() -> None:
        for sample in waiting:
            await work(sample)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(samples))):
            group.create_task(worker())


async def _at_rate(samples: Sequence[Sample], rate: float, seed: int, work: Work) -> None:
    """Begin `rate` samples per second on average, without waiting for earlier ones to finish.

    The times between them are exponential (a Poisson process), drawn with the seed.
    """
    draws, began, due_s = random.Random(seed), perf_counter(), 0.0
    async with asyncio.TaskGroup() as group:
        for sample in samples:
            due_s += draws.expovariate(rate)
            await asyncio.sleep(max(0.0, began + due_s - perf_counter()))
            group.create_task(work(sample))


class ServerBackend:
    """The servers of a source. `run` runs a coroutine in the event loop of their clients."""

    def __init__(self, source: ServerSource, num_at_once: int) -> None:
        self.source, self._num_at_once = source, num_at_once
        self._requests: Sequence[Request] = ()
        self.blocks: list[BlockHeader] = []

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        self._runner.get_loop()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._end_requests()
            self.run(self.source.close())
        finally:
            self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine."""
        return self._runner.run(work)

    def _end_requests(self) -> None:
        """Cancel what an interrupt left under way."""
        loop = self._runner.get_loop()
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            with suppress(KeyboardInterrupt):  # a task raises the same one again
                loop.run_until_complete(asyncio.wait(tasks))

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        return BackendInfo(servers=self.source.describe(), blocks=tuple(self.blocks))

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Keep the requests: each server is warmed up when it is opened."""
        self._requests = requests

    def runner(self, plan: Plan, log: Log, progress: Progress) -> BlockRunner:
        return BlockRunner(plan, self, log, progress)

    async def open(self, method: str) -> OpenServer:
        """The server of a method, answering and warmed up.

        Raises:
            SpecbenchError: it does not answer.
        """
        server = await self.source.open(method)
        if not server.is_warm:
            await self._warm_up(server)
            server.is_warm = True
            await asyncio.sleep(SETTLE_S)  # so that its counters do not enter the first block
        return server

    async def _warm_up(self, server: OpenServer) -> None:
        """Send every request once, and the usual one as many times at once as the run will."""
        for i, request in enumerate(self._requests):
            short = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
            ask = ChatRequest(short, [{"role": "user", "content": "Hello"}])
            number = self._num_at_once if i == 0 else 1
            with suppress(RequestFailed, ExceptionGroup):  # samples will fail too
                async with asyncio.TaskGroup() as group:
                    for _ in range(number):
                        group.create_task(server.complete(ask))
