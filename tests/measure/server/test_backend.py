"""Blocks of requests to servers: order, load, records, counters and failures."""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from specbench.data.prompts import Prompt
from specbench.errors import RunFolderError
from specbench.log.backend import BlockHeader
from specbench.measure.base import Message, Plan
from specbench.measure.server import backend as backend_module
from specbench.measure.server import servers as servers_module
from specbench.measure.server.backend import BlockClock, BlockRunner, ServerBackend, blocks
from specbench.measure.server.client import Client
from specbench.measure.server.engine import load_engine
from specbench.measure.server.find import FoundServer
from specbench.measure.server.records import make_record
from specbench.measure.server.servers import OpenServer, RunningServers
from specbench.measure.server.stream import (
    Answer,
    Counts,
    RequestFailed,
    StreamProtocol,
    completions,
)
from specbench.measure.spec import RunSpec
from specbench.types import Record, RecordKey, Request
from tests.support.backend import FakeSetup, Words, fake_plan
from tests.support.stub_server import TEXT, Stub, serving
from tests.support.watching import Watcher

NOWHERE = "http://127.0.0.1:9"
PROMPTS = {
    "chat": [Prompt("chat/1", "", ("hello", "again")), Prompt("chat/2", "", ("bye",))],
    "maths": [Prompt(f"maths/{i}", "", ("1+1",)) for i in range(4)],
}


class Quiet:
    """A log that nobody reads."""

    def append(self, record: Record) -> None: ...
    def changed(self) -> None: ...


class Letters(Words):
    """A codec of letters: a prompt's tokens count the letters of its messages."""

    eos_ids = frozenset({2})
    end_id = 2
    vocab_size = 26

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(len(message["content"]) for message in messages)

    def text(self, token_ids: Sequence[int]) -> str:
        return "".join(TEXT[token] for token in token_ids if token != 2)

    def token_ids(self, text: str) -> tuple[int, ...]:
        return tuple(TEXT.index(letter) for letter in text)


@dataclass
class Done:
    """The outcome of a run of blocks."""

    records: list[Record]
    blocks: list[BlockHeader]
    stubs: Mapping[str, Stub]
    stored: list[Record]
    num_active_at_writes: list[int]


def plan_of(labels: Sequence[str], spec: RunSpec) -> Plan:
    plan = fake_plan(dict.fromkeys(labels, lambda request: pytest.fail()), PROMPTS, spec)
    assert isinstance(plan.setup, FakeSetup)
    plan.setup.codec = Letters()
    return plan


def run(
    stubs: Mapping[str, Stub],
    *,
    protocol: StreamProtocol | None = None,
    done: Sequence[Record] = (),
    request_s: float = 5,
    source: type[RunningServers] = RunningServers,
    sink: Quiet | None = None,
    **values: Any,
) -> Done:
    plan = plan_of([*stubs], RunSpec(backend="server", **values))
    with ExitStack() as stack:
        for stub in stubs.values():
            stack.enter_context(serving(stub))
        found = {
            label: FoundServer(
                stub.root, "tiny", "a stub", protocol or completions(), True,
                has_counters=bool(stub.counters),
            )
            for label, stub in stubs.items()
        }  # fmt: skip
        backend = ServerBackend(source(found, request_s=request_s), 1)
        stored, num_active = list[Record](), list[int]()

        class Kept(Quiet):
            def append(self, record: Record) -> None:
                stored.append(record)
                num_active.append(sum(len(one.active) for one in stubs.values()))

        with backend:
            runner = BlockRunner(plan, backend, sink or Kept(), Watcher())
            records = list(runner.run(done))
        return Done(records, backend.blocks, stubs, stored, num_active)


def test_every_planned_record_is_made_once_and_stored() -> None:
    done = run({"vanilla": Stub(), "eagle3": Stub()}, repeats=2, concurrency=(1, 3))
    plan = plan_of(["vanilla", "eagle3"], RunSpec(backend="server", repeats=2, concurrency=(1, 3)))
    keys = [record.key for record in done.stored]
    assert len(keys) == len(set(keys)) == 2 * 2 * 2 * 7
    assert set(keys) == set(plan.keys) == {record.key for record in done.records}
    assert all(record.is_ok for record in done.records)


def test_methods_take_turns_and_a_repeat_begins_with_another_one() -> None:
    plan = plan_of(["vanilla", "a", "b"], RunSpec(backend="server", repeats=2))
    side_by_side = [one.method for one in blocks(plan, is_one_at_a_time=False)]
    assert side_by_side == ["vanilla", "a", "b"] * 2 + ["b", "vanilla", "a"] * 2
    started = [one.method for one in blocks(plan, is_one_at_a_time=True)]
    assert started == ["vanilla"] * 2 + ["a"] * 2 + ["b"] * 2 + ["b"] * 2 + ["vanilla"] * 2 + (
        ["a"] * 2
    )


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_server_gets_as_many_requests_at_once_as_asked(concurrency: int) -> None:
    done = run({"vanilla": Stub(delay_s=0.002)}, concurrency=(concurrency,))
    assert done.stubs["vanilla"].most_at_once == concurrency


def test_requests_at_a_rate_do_not_wait_for_answers() -> None:
    done = run({"vanilla": Stub(delay_s=0.02)}, request_rates=(500.0,))
    assert done.stubs["vanilla"].most_at_once > 2
    assert {record.key.request_rate for record in done.records} == {500.0}
    began = [record.serving.began_s for record in done.records if record.serving]
    assert len(began) == 7


def test_a_record_has_the_times_and_the_steps_of_its_answer() -> None:
    stub = Stub(answer=lambda prompt: (5, 6, 7, 8, 9, 2), accepted_per_step=(2, 3), delay_s=2e-3)
    record = run({"eagle3": stub}).records[0]
    assert record.token_ids == (5, 6, 7, 8, 9, 2)
    assert (record.text, record.stop_reason) == ("fghij", "eos")
    assert record.accept_lengths == (3, 2)  # the second step was cut by the end of the answer
    assert record.serving is not None and len(record.serving.gaps_s) >= 1
    assert record.decode_s == pytest.approx(sum(record.serving.gaps_s), abs=1e-5)
    assert (record.serving.num_accepted, record.serving.server_prefill_s) == (5, 0.0174)


def test_a_step_without_a_draft_emits_one_token() -> None:
    stub = Stub(answer=lambda prompt: (5, 6, 7, 8, 9, 2), accepted_per_step=(1,))
    assert run({"ngram": stub}).records[0].accept_lengths == (2, 1, 1, 1)


def test_an_end_token_that_is_counted_but_not_sent_is_part_of_the_answer() -> None:
    stub = Stub("llamacpp", accepted_per_step=(2,))
    record = run({"sps": stub}, protocol=load_engine("llamacpp").protocol).records[0]
    assert (record.token_ids, record.accept_lengths) == ((5, 6, 7, 2), ())
    assert record.serving is not None
    assert (record.serving.num_accepted, record.serving.reported_tokens) == (2, None)


def test_text_is_tokenised_and_its_tokens_are_counted_by_the_server() -> None:
    record = run({"vanilla": Stub("plain")}, protocol=completions(is_chat=True)).records[0]
    assert record.token_ids == (5, 6, 7, 2)
    assert record.serving is not None and record.serving.reported_tokens == 4


def test_a_vanilla_that_speculates_is_refused() -> None:
    done = run({"vanilla": Stub(accepted_per_step=(2,))})
    assert "must run without speculation" in (done.records[0].error or "")


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        (Stub(fault="wrong count"), "counted 99 tokens and sent 4"),
        (Stub(answer=lambda prompt: (5,) * 40), "sent 40 tokens, more than the 16"),
        (Stub(fault="half"), "broke off"),
        (Stub(fault="500"), "HTTP status 500: boom"),
    ],
)
def test_a_bad_answer_is_a_failed_record_without_tokens_or_times(stub: Stub, reason: str) -> None:
    done = run({"vanilla": stub})
    record = done.records[0]
    assert (record.status, record.token_ids, record.prefill_s) == ("error", (), None)
    assert reason in (record.error or "")
    assert done.blocks[0].num_failed == done.blocks[0].num_requests == 3
    assert (done.records[1].error or "").startswith("Turn 0, which this turn follows, has failed")


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
        (Counts(1, 8, 8, (8,)), 0, ""),  # some beyond the end of the answer
        (Counts(num_drafted=48, num_accepted=20), 48, ""),
    ],
)
def test_counts_that_cannot_be_are_an_error_with_what_contradicts_what(
    counts: Counts, draft_length: int, reason: str
) -> None:
    def made(answer: Answer) -> Record:
        return make_record(
            RecordKey("sps", 0.0, "chat", "chat/1", 0, 0, 1), Request((1,), 16), answer, Letters(),
            began=0.0, is_prompt_sent=True, draft_length=draft_length,
        )  # fmt: skip

    answer = Answer("", (5, 6, 7, 2), "eos", 4, 1, counts, 0.0, (1.0,))
    if reason:
        with pytest.raises(RequestFailed, match=f"contradict each other: .*{reason}"):
            made(answer)
        return
    assert made(answer).num_tokens == 4
    for token in (-1, 26, 10**9):
        with pytest.raises(RequestFailed, match=f"sent the token {token}, and the model has 26"):
            made(dataclasses.replace(answer, token_ids=(5, 6, token, 2)))
    text = dataclasses.replace(answer, text="abcdef", token_ids=None, num_tokens=10)
    assert made(text).num_tokens == 10, "6 and the end token, and 3 more"
    with pytest.raises(RequestFailed, match="counted 11 tokens, but its text has about 7"):
        made(dataclasses.replace(text, num_tokens=11))


def test_one_bad_answer_fails_alone() -> None:
    done = run({"vanilla": Stub(fault="drops", fault_from=3, num_faults=1)})
    assert [record.is_ok for record in done.records].count(False) == 1
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


def test_a_resumed_run_sends_only_what_is_missing() -> None:
    first = run({"vanilla": Stub()}).records
    done = run({"vanilla": Stub()}, done=first[:4])
    assert len(done.records) == len(done.stubs["vanilla"].requests) == 3
    assert [(one.num_requests, one.num_before) for one in done.blocks] == [(3, 1)]


def test_later_turns_follow_the_first_replies_of_the_first_method() -> None:
    stubs = {"vanilla": Stub(answer=lambda p: (5, 2)), "sps": Stub(answer=lambda p: (5, 6, 7, 2))}
    done = run(stubs, concurrency=(1, 2))
    assert all(record.is_ok for record in done.records)
    prompts = [body["prompt"] for stub in stubs.values() for body in stub.requests]
    assert [prompt for prompt in prompts if len(prompt) == 3] == [[5, 1, 5]] * 4
    own = run(
        {"vanilla": Stub(answer=lambda p: (5, 2)), "sps": Stub(answer=lambda p: (5, 6, 7, 2))},
        history="own",
    )
    chats = [body["prompt"] for body in own.stubs["sps"].requests if len(body["prompt"]) == 3]
    assert chats == [[5, 3, 5]]


def test_records_are_written_only_while_no_request_is_under_way() -> None:
    done = run({"vanilla": Stub(delay_s=0.002)}, concurrency=(8,))
    assert done.num_active_at_writes == [0] * 7


class Stopping(Quiet):
    """A sink that raises this at its third record."""

    def __init__(self, error: BaseException) -> None:
        self._error, self.num_records = error, 0

    def append(self, record: Record) -> None:
        self.num_records += 1
        if self.num_records == 3:
            raise self._error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RunFolderError("the disk is full")])
def test_what_stops_a_run_is_raised_as_it_is(error: BaseException) -> None:
    sink = Stopping(error)
    with pytest.raises(type(error)):
        run({"vanilla": Stub()}, sink=sink, concurrency=(2,))
    assert sink.num_records == 3


@pytest.mark.parametrize(("has_rate", "duration_s"), [(False, 6.0), (True, 7.0)])
def test_the_time_of_a_block_is_without_that_of_writing_records(
    monkeypatch: pytest.MonkeyPatch, has_rate: bool, duration_s: float
) -> None:
    now = 0.0
    monkeypatch.setattr(backend_module, "perf_counter", lambda: now)
    monkeypatch.setattr(backend_module, "thread_time", lambda: now / 2)
    clock = BlockClock(has_rate=has_rate)
    for requests_s, writing_s in ((2, 1), (4, 100)):
        now += requests_s
        with clock.writing():
            now += writing_s
    assert clock.duration_s == duration_s
    assert clock.client_s == 3.0


class Dying(RunningServers):
    """Servers whose process has ended."""

    async def open(self, method: str) -> OpenServer:
        server = await super().open(method)
        return OpenServer(server.client, server.found, lambda: "The engine ended with status 7.")


@pytest.mark.parametrize(("source", "num_requests"), [(RunningServers, 1), (Dying, 2)])
def test_a_server_that_was_started_again_is_warmed_up_again(
    source: type[RunningServers], num_requests: int
) -> None:
    with serving(Stub()) as stub:
        found = FoundServer(stub.root, "tiny", "a stub", completions(), True)
        with ServerBackend(source({"vanilla": found}, request_s=5), 1) as backend:
            backend.warm_up([Request((1, 8), 4)])
            for _ in range(2):
                backend.run(backend.open("vanilla"))
    assert len(stub.requests) == num_requests


@pytest.mark.parametrize(("ends_after", "ending"), [(0, "ended"), (5, "ended"), (10**9, "")])
def test_the_end_of_a_process_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, ends_after: int, ending: str
) -> None:
    """It is known later than that its server no longer answers. One that hangs does not end."""
    monkeypatch.setattr(servers_module, "DEATH_S", 0.5)
    monkeypatch.setattr(servers_module, "_POLL_S", 0.01)
    num_asked = 0

    def death() -> str:
        nonlocal num_asked
        num_asked += 1
        return "ended" if num_asked > ends_after else ""

    server = OpenServer(Client(NOWHERE), FoundServer(NOWHERE, "", "", completions(), True), death)
    assert asyncio.run(server.wait_for_death()) == ending
    num_before = num_asked
    assert asyncio.run(server.wait_for_death()) == ending
    assert num_asked - num_before <= 2


def test_a_record_has_the_end_of_the_engine() -> None:
    first = run({"vanilla": Stub(fault="drops")}, source=Dying).records[0]
    assert (first.error or "").endswith("tokens had arrived. The engine ended with status 7.")
