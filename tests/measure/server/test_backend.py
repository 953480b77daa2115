"""Blocks of requests to servers: order, load, records, counters and failures."""

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import pytest

from specbench.data.prompts import Prompt
from specbench.errors import RunFolderError
from specbench.log.backend import BlockHeader, ServerHeader
from specbench.measure.base import Plan
from specbench.measure.server import blocks as blocks_module
from specbench.measure.server import servers as servers_module
from specbench.measure.server.backend import BlockRunner, ServerBackend
from specbench.measure.server.blocks import BlockClock, blocks
from specbench.measure.server.client import Client
from specbench.measure.server.find import FoundServer
from specbench.measure.server.openai_api import completions
from specbench.measure.server.records import make_record
from specbench.measure.server.servers import OpenServer, RunningServers
from specbench.measure.server.stream import (
    Answer,
    ChatRequest,
    Counts,
    RequestFailed,
    StreamProtocol,
)
from specbench.measure.server.warm_up import warm_up
from specbench.measure.spec import RunSpec
from specbench.models.templates import Message
from specbench.types import Record, RecordKey, Request
from tests.support.backend import FakeSetup, Words, fake_plan
from tests.support.stub_server import TEXT, Stub, serving
from tests.support.watching import Watcher

NOWHERE = "http://127.0.0.1:9"
PROMPTS = {
    "chat": [Prompt("chat/1", "", ("hello", "again")), Prompt("chat/2", "", ("bye",))],
    "maths": [Prompt(f"maths/{i}", "", ("1+1",)) for i in range(4)],
}


class Kept:
    """A log that keeps records, and the number of requests in flight when each is written.

    It raises `error` at its third record.
    """

    def __init__(self, stubs: Iterable[Stub] = (), error: BaseException | None = None) -> None:
        self.stubs, self.error = stubs, error
        self.records, self.num_active = list[Record](), list[int]()

    def append(self, record: Record) -> None:
        self.records.append(record)
        self.num_active.append(sum(len(stub.active) for stub in self.stubs))
        if self.error and len(self.records) == 3:
            raise self.error

    def changed(self) -> None: ...


class Letters(Words):
    """A codec of letters. A prompt has one token per message, the number of its letters."""

    eos_ids = frozenset({2})
    end_id = 2
    vocab_size = 26

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(len(message["content"]) for message in messages)

    def text(self, token_ids: Sequence[int]) -> str:
        return "".join(TEXT[token] for token in token_ids if token != 2)

    def token_ids(self, text: str) -> tuple[int, ...]:
        return tuple(TEXT.index(letter) for letter in text)


class Done(NamedTuple):
    """The plan of a run of blocks, and what the run made."""

    plan: Plan
    records: list[Record]
    blocks: list[BlockHeader]
    log: Kept


def plan_of(labels: Sequence[str], **values: Any) -> Plan:
    spec = RunSpec(backend="server", **values)
    plan = fake_plan(dict.fromkeys(labels, lambda request: pytest.fail()), PROMPTS, spec)
    assert isinstance(plan.setup, FakeSetup)
    plan.setup.codec = Letters()
    return plan


def found_at(url: str, protocol: StreamProtocol | None = None, **more: Any) -> FoundServer:
    return FoundServer(ServerHeader(url, "", "tiny", ""), protocol or completions(), **more)


def run(
    stubs: Mapping[str, Stub],
    *,
    protocol: StreamProtocol | None = None,
    done: Sequence[Record] = (),
    request_s: float = 5,
    source: type[RunningServers] = RunningServers,
    log: Kept | None = None,
    **values: Any,
) -> Done:
    plan, log = plan_of([*stubs], **values), log or Kept(stubs.values())
    with ExitStack() as stack:
        for stub in stubs.values():
            stack.enter_context(serving(stub))
        servers = {
            label: found_at(stub.root, protocol, has_counters=bool(stub.counters))
            for label, stub in stubs.items()
        }
        backend = stack.enter_context(ServerBackend(source(servers, request_s=request_s), 1))
        records = list(BlockRunner(plan, backend, log, Watcher()).run(done))
    return Done(plan, records, backend.blocks, log)


def test_every_planned_record_is_made_once_and_stored() -> None:
    done = run({"vanilla": Stub(), "eagle3": Stub()}, repeats=2, concurrency=(1, 3))
    keys = [record.key for record in done.log.records]
    assert len(keys) == len(set(keys)) == 2 * 2 * 2 * 7
    assert set(keys) == set(done.plan.keys) == {record.key for record in done.records}
    assert all(record.is_ok for record in done.records)


def test_each_repeat_begins_with_another_method() -> None:
    plan = plan_of(["vanilla", "a", "b"], repeats=2)
    side_by_side, started = (
        "".join(block.method[0] for block in blocks(plan, is_one_at_a_time=is_started))
        for is_started in (False, True)
    )
    assert (side_by_side, started) == ("vabvabbvabva", "vvaabbbbvvaa")


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_server_gets_the_requested_number_at_once(
    concurrency: int,
) -> None:
    stub = Stub(delay_s=0.002)
    done = run({"vanilla": stub}, concurrency=(concurrency,))
    assert stub.most_at_once == concurrency
    assert done.log.num_active == [0] * 7


def test_the_second_turn_contains_the_answer_as_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Letters, "reply", lambda codec, record: {"role": "", "content": "x" * 99})
    stub = Stub()
    run({"vanilla": stub})
    prompts = [request["prompt"] for request in stub.requests]
    assert {prompt[1] for prompt in prompts if len(prompt) == 3} == {99}


def test_requests_at_a_rate_do_not_wait_for_answers() -> None:
    stub = Stub(delay_s=0.02)
    done = run({"vanilla": stub}, request_rates=(500.0,))
    assert stub.most_at_once > 2
    assert {record.key.request_rate for record in done.records} == {500.0}
    assert len([record.serving.began_s for record in done.records if record.serving]) == 7


@pytest.mark.parametrize(("accepted", "lengths"), [((2, 3), (3, 2)), ((1,), (2, 1, 1, 1))])
def test_a_record_has_the_times_and_the_steps_of_its_answer(
    accepted: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    """The end of the answer cuts the last step. A step without a draft emits one token."""
    answer = (5, 6, 7, 8, 9, 2)
    stub = Stub(answer=lambda prompt: answer, accepted_per_step=accepted, delay_s=2e-3)
    record = run({"eagle3": stub}).records[0]
    assert record.token_ids == answer
    assert (record.text, record.stop_reason) == ("fghij", "eos")
    assert record.accept_lengths == lengths
    assert (about := record.serving) is not None and len(about.gaps_s) >= 1
    assert record.decode_s == pytest.approx(sum(about.gaps_s), abs=1e-5)
    assert (about.num_accepted, about.server_prefill_s) == (sum(accepted), 0.0174)


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        (Stub(fault="wrong count"), "counted 99 tokens and sent 4"),
        (Stub(answer=lambda prompt: (5,) * 40), "sent 40 tokens, more than the 16"),
        (Stub(fault="500"), "HTTP status 500: boom"),
        (Stub(accepted_per_step=(2,)), "must run without speculation"),
    ],
)
def test_a_bad_answer_becomes_a_failed_record(stub: Stub, reason: str) -> None:
    done = run({"vanilla": stub})
    record = done.records[0]
    assert (record.status, record.token_ids, record.prefill_s) == ("error", (), None)
    assert reason in (record.error or "")
    assert done.blocks[0].num_failed == done.blocks[0].num_requests == 3
    assert (done.records[1].error or "").startswith("Turn 1, which this turn follows, has failed")


@pytest.mark.parametrize(
    ("counts", "draft_length", "reason"),
    [
        (Counts(num_accepted=-1), 0, "one is negative"),
        (Counts(num_drafts=-3), 0, "one is negative"),
        (Counts(2, None, 1, (2, -1)), 0, "one is negative"),
        (Counts(num_accepted=10**9), 0, "1000000000 tokens were accepted of at most 1028"),
        (Counts(num_drafted=4, num_accepted=5), 0, "5 tokens were accepted of at most 4"),
        (Counts(num_drafts=1, num_accepted=6), 5, "6 tokens were accepted of at most 5"),
        (Counts(num_drafts=5, num_accepted=0), 0, "5 steps made 4 tokens"),
        (Counts(2, 8, 3, (3,)), 0, "2 steps accepted 3 tokens, but the list of steps has 1 with 3"),
        (Counts(1, 8, 2, (3,)), 0, "1 steps accepted 2 tokens, but the list of steps has 1 with 3"),
        (Counts(1, 8, 8, (8,)), 0, ""),  # some are beyond the end of the answer
        (Counts(None, 8, 3, (3,)), 0, ""),  # only the list has the number of steps
        (Counts(1, 8, None, (3,)), 0, ""),  # only the list has accepted tokens
        (Counts(num_drafted=48, num_accepted=20), 48, ""),
        (Counts(accepted_per_step=(600, 2)), 0, ""),
        (Counts(accepted_per_step=(600, 600)), 0, "1200 tokens were accepted of at most 1028"),
    ],
)
def test_impossible_counts_are_an_error(counts: Counts, draft_length: int, reason: str) -> None:
    def record_of(answer: Answer) -> Record:
        return make_record(
            RecordKey("sps", 0.0, "chat", "chat/1", 0, 0, 1), Request((1,), 16), answer, Letters(),
            began=0.0, is_prompt_sent=True, draft_length=draft_length,
        )  # fmt: skip

    answer = Answer("", (5, 6, 7, 2), "eos", 4, 1, counts, 0.0, (1.0,))
    if reason:
        with pytest.raises(RequestFailed, match=f"contradict each other: .*{reason}"):
            record_of(answer)
        return
    assert record_of(answer).num_tokens == 4
    for token in (-1, 26, 10**9):
        with pytest.raises(RequestFailed, match=f"sent token {token}, but the model has 26"):
            record_of(dataclasses.replace(answer, token_ids=(5, 6, token, 2)))
    text = dataclasses.replace(answer, text="abcdef", token_ids=None, num_tokens=10)
    assert record_of(text).num_tokens == 10, (
        "the text has 6, the end token is 1, and 3 more are allowed"
    )
    with pytest.raises(RequestFailed, match="counted 11 tokens, but its text has about 7"):
        record_of(dataclasses.replace(text, num_tokens=11))


class Dying(RunningServers):
    """Servers whose process has ended."""

    async def open(self, method: str) -> OpenServer:
        server = await super().open(method)
        return OpenServer(
            server.client, server.properties, lambda: "The engine ended with status 7."
        )


def test_one_bad_answer_fails_alone() -> None:
    done = run({"vanilla": Stub(fault="drops", fault_from=3, num_faults=1)}, source=Dying)
    (error,) = [record.error for record in done.records if record.error]
    assert error.endswith("tokens had arrived. The engine ended with status 7.")
    assert len(done.records) == len({record.key for record in done.records}) == 7


def test_a_server_killed_in_the_middle_fails_the_rest_at_once() -> None:
    stub = Stub(delay_s=0.001)
    answer = stub.answer

    def dying(prompt: Sequence[int]) -> Sequence[int]:
        if len(stub.requests) == 5:
            stub.stop()
        return answer(prompt)

    stub.answer = dying
    done = run({"vanilla": stub}, request_s=600)
    errors = [record.error for record in done.records if record.error]
    assert len(done.records) == 7 and 0 < len(errors) < 7
    assert "no longer answers" in (errors[-1] or "")


def test_counters_are_read_before_and_after_each_block() -> None:
    counters = {
        "generation_tokens_total": 100.0,
        "spec_decode_num_accepted_tokens_total": 7.0,
        "spec_decode_num_drafts_total": 3.0,
    }
    done = run({"ngram": Stub("plain", accepted_per_step=(2,), counters=counters)},
               protocol=completions(is_chat=True))  # fmt: skip
    assert done.blocks[0].counters == {"num_tokens": 12.0, "num_accepted": 6.0, "num_drafts": 3.0}
    assert done.blocks[0].num_tokens == 12
    record = done.records[0]
    assert record.token_ids == (5, 6, 7, 2)
    assert record.serving is not None and record.serving.reported_tokens == 4


def test_a_resumed_run_sends_only_what_is_missing() -> None:
    stub, first = Stub(), run({"vanilla": Stub()}).records
    done = run({"vanilla": stub}, done=first[:4])
    assert len(done.records) == len(stub.requests) == 3
    assert [(block.num_requests, block.num_before) for block in done.blocks] == [(3, 1)]


@pytest.mark.parametrize(("history", "length"), [("shared", 1), ("own", 3)])
def test_later_turns_follow_the_replies_of_the_first_method_or_their_own(
    history: str, length: int
) -> None:
    stubs = {"vanilla": Stub(answer=lambda p: (5, 2)), "sps": Stub(answer=lambda p: (5, 6, 7, 2))}
    done = run(stubs, concurrency=(1, 2), history=history)
    assert all(record.is_ok for record in done.records)
    prompts = [body["prompt"] for stub in stubs.values() for body in stub.requests]
    chats = [prompt for prompt in prompts if len(prompt) == 3]
    assert chats == [[5, 1, 5]] * 2 + [[5, length, 5]] * 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RunFolderError("the disk is full")])
def test_errors_that_stop_a_run_are_raised_unchanged(error: BaseException) -> None:
    log = Kept(error=error)
    with pytest.raises(type(error)):
        run({"vanilla": Stub()}, log=log, concurrency=(2,))
    assert len(log.records) == 3


@pytest.mark.parametrize(("has_rate", "duration_s"), [(False, 7.5), (True, 24.0)])
def test_the_time_of_a_block_is_that_of_its_requests(
    monkeypatch: pytest.MonkeyPatch, has_rate: bool, duration_s: float
) -> None:
    now = 10.0
    monkeypatch.setattr(blocks_module, "perf_counter", lambda: now)
    monkeypatch.setattr(blocks_module, "thread_time", lambda: now / 2)
    clock = BlockClock(has_rate=has_rate)
    for sent, ended in ((12.0, 15.0), (30.5, 34.0), (13.0, 16.0), (12.5, 14.0), (20.0, 19.0)):
        clock.add(sent, ended)
    assert clock.duration_s == duration_s, "4 and 3.5 s with a request, or 24 s to the last token"
    now += 6
    with clock.untimed():
        now += 100
    assert clock.client_s == 3.0
    assert BlockClock(has_rate=has_rate).duration_s == 0.0


@pytest.mark.parametrize("concurrency", [1, 3])
def test_counts_that_come_late_do_not_lengthen_a_block(concurrency: int) -> None:
    done = run({"vanilla": Stub(delay_s=1e-3, late_s=0.05)}, concurrency=(concurrency,))
    for block in done.blocks:
        spans = sorted(
            (record.serving.began_s, record.serving.began_s + (record.wall_s or 0.0))
            for record in done.records
            if record.serving and record.key.task == block.task
        )
        covered = duration_s = 0.0
        for began_s, ended_s in spans:
            duration_s += max(0.0, ended_s - max(began_s, covered))
            covered = max(covered, ended_s)
        assert block.duration_s == pytest.approx(duration_s, abs=2e-3)


@pytest.mark.parametrize(("source", "num_requests"), [(RunningServers, 1), (Dying, 2)])
def test_a_server_that_was_started_again_is_warmed_up_again(
    source: type[RunningServers], num_requests: int
) -> None:
    with serving(Stub()) as stub:
        server = found_at(stub.root)
        with ServerBackend(source({"vanilla": server}, request_s=5), 1) as backend:
            backend.warm_up([Request((1, 8), 4)])
            for _ in range(2):
                backend.run(backend.open("vanilla"))
    assert len(stub.requests) == num_requests


@pytest.mark.parametrize(
    ("error", "raised"),
    [(RequestFailed("busy"), None), (KeyError("a mistake of ours"), KeyError)],
)
def test_the_warm_up_ignores_only_failed_requests(
    error: Exception, raised: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []

    async def complete(_server: OpenServer, _ask: ChatRequest) -> None:
        number = len(ended)
        ended.append(number)
        if number == 0:
            raise error
        await asyncio.sleep(0.01)
        ended.append(-number)

    monkeypatch.setattr(OpenServer, "complete", complete)
    with serving(Stub()) as stub:
        found = found_at(stub.root)
    server = OpenServer(mock.Mock(counters=mock.AsyncMock(return_value={})), found)
    with pytest.raises(raised) if raised else nullcontext():
        asyncio.run(warm_up(server, [Request((1, 8), 4)], num_at_once=2))
    assert server.is_warm == (raised is None)
    assert ended == [0, 1, -1]  # the other request is answered


@pytest.mark.parametrize(("ends_after", "ending"), [(0, "ended"), (5, "ended"), (10**9, "")])
def test_a_run_waits_once_for_the_end_of_a_process(
    monkeypatch: pytest.MonkeyPatch, ends_after: int, ending: str
) -> None:
    """The process ends only after its server stops answering. A server that hangs does not end."""
    monkeypatch.setattr(servers_module, "DEATH_S", 0.2)
    monkeypatch.setattr(servers_module, "_POLL_S", 0.01)
    num_asked = 0

    def death() -> str:
        nonlocal num_asked
        num_asked += 1
        return "ended" if num_asked > ends_after else ""

    server = OpenServer(Client(NOWHERE), found_at(NOWHERE), death)
    assert asyncio.run(server.wait_for_death()) == ending
    num_before = num_asked
    assert asyncio.run(server.wait_for_death()) == ending
    assert num_asked - num_before <= 2
