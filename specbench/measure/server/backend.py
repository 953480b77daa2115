"""Use servers as the backend of a run: warm them up, and complete the plan block by block."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Self, TypeVar

from msgspec.structs import replace as replace_header

from specbench.errors import SpecbenchError, describe_error
from specbench.log.backend import BlockHeader
from specbench.measure.base import BackendInfo, Log, Plan, Progress, Sample
from specbench.measure.requests import token_ends
from specbench.measure.server.baseline import refuse_drafts, refuse_drafts_of_block
from specbench.measure.server.blocks import Block, BlockClock, at_load, block_header, blocks
from specbench.measure.server.chat_requests import Repeats, chat_request
from specbench.measure.server.counters import SETTLE_S, AnswerCounts, increase
from specbench.measure.server.records import make_record
from specbench.measure.server.server_meter import server_meters
from specbench.measure.server.servers import OpenServer, ServerSource
from specbench.measure.server.warm_up import warm_up
from specbench.types import Record, RecordKey, Request, seed_of

T = TypeVar("T")


@dataclass(slots=True)
class BlockRunner:
    """Completes a plan's samples with servers, except those that are done.

    Records are written and progress is reported only while no request is in flight, because both
    take time that would count as the server's.
    """

    plan: Plan
    """The run."""
    backend: ServerBackend
    """The servers of the methods."""
    log: Log
    """Receives the records."""
    progress: Progress
    """Receives the events of the run."""
    _records: dict[RecordKey, Record] = field(default_factory=dict)
    """All records so far, those of an earlier part of the run first."""
    _unwritten: list[Record] = field(default_factory=list)
    """Records that are not in the log yet."""

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run all blocks of the plan, and yield the new records of each block once it has ended.

        A block has the requests of one method, on one task, at one temperature and load, in one
        pass over the prompts. `done` has the records of earlier parts of the run, which are not
        measured again. Raises UserError if the baseline's server made drafts.
        """
        self._records = {record.key: record for record in done}
        running_pass = 0  # number of the pass that runs, from 0
        # If only one server is up at a time, it gets all its blocks of a pass before the next one
        # starts.
        for block in blocks(self.plan, is_one_at_a_time=self.backend.source.is_one_at_a_time):
            missing = [key for key in block.keys if key not in self._records]  # keys of records
            if not missing:
                continue
            # `block.first` is its first sample, which has the number of the block's pass.
            if block.first.repeat != running_pass:
                running_pass = block.first.repeat
                # Servers that the run started are ended, so that they forget earlier requests.
                self.backend.run(self.backend.source.end_pass())
            try:
                self.backend.run(self._run_block(block))
            except BaseExceptionGroup as group:  # errors of the block's tasks: raise the first
                raise group.exceptions[0] from None
            self.log.changed()  # writes the header again, with the block
            if self.backend.blocks:  # the last is this block's header, if its server answered
                refuse_drafts_of_block(self.backend.blocks[-1])  # raises if the baseline drafted
            yield from (self._records[key] for key in missing)

    async def _run_block(self, block: Block) -> None:
        """Complete the missing records of a block, and add its header to `backend.blocks`.

        The header has the block's time, memory and energy, and the growth of the server's counters.
        A sample is a prompt with its turns; each turn has a record. If the server does not answer
        at the start, the missing records become error records, and no header is added.
        """
        try:
            server = await self.backend.open(block.method)
        except SpecbenchError as error:
            self._fail_block(block, error)
            return
        # Raises UserError if the baseline's server drafted when it was found or warmed up.
        refuse_drafts(block.method, server.num_untimed_drafts, "before the first timed request")
        num_records_before = len(self._records)
        unfinished = [
            sample
            for sample in block.samples
            if any(key not in self._records for key in sample.keys(block.method))
        ]
        counters_before = await server.counters()  # counts by name; empty if the server has none
        process_ids = self.backend.source.process_ids()  # of servers on this machine, by method
        # Measures memory and energy of the server from now on.
        meter = await self.backend.meters.of_block(process_ids, block.method)
        clock = BlockClock(has_rate=bool(block.first.load.request_rate))
        are_drafts_counted = {"num_tokens", "num_drafts"} <= counters_before.keys()
        answer_counts: AnswerCounts | None = None
        # With one request at a time, the counters grow by the counts of a single answer.
        if are_drafts_counted and block.first.load.concurrency == 1:
            answer_counts = AnswerCounts(server.counters, counters_before)
        num_repeats = await self._complete_samples(block, unfinished, server, clock, answer_counts)
        client_s = clock.client_s  # CPU seconds of this thread; the wait below is not counted
        meter_fields = meter.header_fields()  # fields of the block's header, by name
        growth: dict[str, float] = {}  # increase of the counters in this block, by name
        if counters_before:
            await asyncio.sleep(SETTLE_S)  # until the counters include the last answer
            growth = increase(counters_before, await server.counters())
        new_records = list(self._records.values())[num_records_before:]  # records of this block
        header = block_header(block, clock, new_records, client_s, growth)
        self.backend.blocks.append(replace_header(header, **meter_fields, num_repeats=num_repeats))

    async def _complete_samples(
        self,
        block: Block,
        samples: Sequence[Sample],
        server: OpenServer,
        clock: BlockClock,
        answer_counts: AnswerCounts | None,
    ) -> int:
        """Complete samples of a block at its load, and write their records.

        `samples` are the prompts of the block, with their turns, that lack a record. `server` is
        the server of the block's method. `clock` gets the time of each new record. `answer_counts`
        counts an answer's drafts by the server's counters; None if the counters cannot tell single
        answers apart. Returns the number of requests that were sent again only to keep the load;
        they already have records.
        """
        num_active = 0  # samples in flight

        async def complete_turns(sample: Sample) -> None:
            """Complete those turns of a sample that have no record, one after the other.

            The new records of all samples are written when none is in flight (`num_active` is 0).
            """
            nonlocal num_active
            if num_active == 0:  # progress shows only the first of the samples in flight
                self.progress.sample_started(block.method, sample.task, sample.prompt.sample_id)
            num_active += 1
            for key in sample.keys(block.method):  # the key of each turn's record
                if key not in self._records:
                    record = await self._complete(server, key, sample, clock)
                    if answer_counts:  # the record gets the drafts by the server's counters
                        with clock.untimed():
                            record = await answer_counts.counted(record)
                    self._keep(record)
            num_active -= 1
            if num_active == 0:
                with clock.untimed():
                    self._write()

        repeats = Repeats(self.plan, self._records, block.method, server)
        seed = self.plan.spec.seed + block.first.repeat  # new random times in each pass
        # Samples in `block.samples` that already have records are sent again, to keep the load.
        await at_load(block.first.load, samples, seed, complete_turns, block.samples, repeats.send)
        return repeats.num_sent

    async def _complete(
        self, server: OpenServer, key: RecordKey, sample: Sample, clock: BlockClock
    ) -> Record:
        """Complete a turn of a sample (a prompt). Any error becomes an error record.

        `key` names the method, prompt and turn. `clock` gets the time of the request. If the
        server's process ended, the error says so too.
        """
        num_prompt_tokens = 0  # unknown yet
        sent = perf_counter()  # used if an error comes before the request is sent
        try:
            ask = chat_request(self.plan, self._records, key, sample)  # with the earlier replies
            num_prompt_tokens = len(ask.request.prompt_ids)
            server.sent_prompts.append(ask.request.prompt_ids)
            sent = perf_counter()
            answer = await server.complete(ask)
            clock.add(sent, answer.arrivals[-1])  # up to the last token
            return make_record(
                key,
                ask.request,
                answer,
                self.plan.setup.codec,
                began=clock.began,  # of the block
                is_prompt_sent=server.properties.protocol.takes_tokens,  # else messages are sent
                draft_length=server.draft_length,  # most tokens of a draft; 0 if unknown
                # Tokens that the server adds to our prompts, and our latest prompts.
                offset=replace(server.properties.offset, sent_prompts=server.sent_prompts),
            )
        except Exception as error:  # the server, template, tokenizer or an earlier turn failed
            clock.add(sent, perf_counter())
            record = self._error_record(key, num_prompt_tokens, error)
            is_dead = server.client.dead_reason is not None  # the server no longer answers
            # The end of its process in words; empty while it runs, or if the run did not start it.
            # Connections fail a little before the process ends.
            death_text = await server.wait_for_death() if is_dead else server.death()
            if death_text:
                return replace(record, error=f"{record.error} {death_text}")
            return record

    def _fail_block(self, block: Block, error: SpecbenchError) -> None:
        """Write error records for the missing turns of a block whose server does not answer."""
        for key in block.keys:
            if key not in self._records:
                self._keep(self._error_record(key, 0, error))
        self._write()

    def _error_record(self, key: RecordKey, num_prompt_tokens: int, error: Exception) -> Record:
        """The record of a request without an answer, with the reason."""
        reason = error.message if isinstance(error, SpecbenchError) else describe_error(error)
        seed = seed_of(self.plan.spec.seed, key.request)
        return Record(key, "error", num_prompt_tokens, seed=seed, error=reason)

    def _keep(self, record: Record) -> None:
        """Keep a record, to be written when no request is in flight."""
        self._records[record.key] = record
        self._unwritten.append(record)

    def _write(self) -> None:
        """Write the records that are not in the log yet, and show them in the progress.

        This is called while no request is in flight.
        """
        records = self._unwritten
        self._unwritten = []
        for record in records:
            # For each token, the number of characters of the text up to its end.
            ends = token_ends(self.plan.setup.codec, record.token_ids, record.text)
            whole_record = replace(record, token_ends=ends)
            self._records[record.key] = whole_record
            self.log.append(whole_record)
            self.progress.sample_finished(whole_record)


class ServerBackend:
    """The servers of a source. `run` runs a coroutine in the event loop of the servers' clients.

    `blocks` are the headers of the blocks that were run. The warm-up sends `num_at_once` requests
    at once: the run's largest --concurrency, or 1 without one.
    """

    def __init__(self, source: ServerSource, num_at_once: int) -> None:
        self.source = source
        self.blocks: list[BlockHeader] = []
        self._num_at_once = num_at_once
        self._warm_up_requests: Sequence[Request] = ()

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        self._runner.get_loop()
        self._stack = ExitStack()
        self.meters = self._stack.enter_context(server_meters())
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._end_requests()
            self.run(self.source.close())
        finally:
            self._runner.close()
            self._stack.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return its result."""
        return self._runner.run(work)

    def _end_requests(self) -> None:
        """Cancel the requests that are still in flight after an interrupt."""
        loop = self._runner.get_loop()
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            with suppress(KeyboardInterrupt):  # a task raises the interrupt again
                loop.run_until_complete(asyncio.wait(tasks))

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        return BackendInfo(
            servers=self.source.describe(),
            arrangement=self.source.arrangement,
            blocks=tuple(self.blocks),
        )

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Keep the requests for later: each server is warmed up when it is opened."""
        self._warm_up_requests = requests

    def runner(self, plan: Plan, log: Log, progress: Progress) -> BlockRunner:
        return BlockRunner(plan, self, log, progress)

    async def open(self, method: str) -> OpenServer:
        """The server of a method, warmed up. Raises SpecbenchError if it does not answer."""
        server = await self.source.open(method)
        if not server.is_warm:
            await warm_up(server, self._warm_up_requests, self._num_at_once)
        return server
