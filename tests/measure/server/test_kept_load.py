"""Requests that are repeated alone, at the load that they had beside others."""

import asyncio
from collections.abc import Sequence

import pytest

from specbench.measure.base import Sample
from specbench.measure.server import blocks as blocks_module
from specbench.measure.server.blocks import at_load
from specbench.types import Record
from tests.measure.server.test_backend import Done, plan_of, run
from tests.support.stub_server import Stub
from tests.support.virtual_server import Clock


def without(done: Done, num_missing: int) -> list[Record]:
    """The records of a run without the last ones of the task that has four prompts of one turn."""
    of_maths = [record for record in done.records if record.key.task == "maths"]
    others = [record for record in done.records if record.key.task != "maths"]
    num_left = len(of_maths) - num_missing
    return [*others, *of_maths[:num_left]]


def continued(stub: Stub, num_missing: int, concurrency: int) -> Done:
    """A continued run, of which `num_missing` requests of one block are left."""
    loads = (concurrency,)
    first = run({"eagle3": Stub()}, concurrency=loads)
    records = without(first, num_missing)
    return run({"eagle3": stub}, done=records, concurrency=loads)


@pytest.mark.parametrize(
    ("num_missing", "concurrency", "most_at_once"),
    [(1, 4, 4), (2, 3, 3), (1, 8, 4), (1, 1, 1), (4, 4, 4), (3, 2, 2)],
)
def test_other_requests_of_the_block_keep_the_load_and_have_no_second_record(
    num_missing: int, concurrency: int, most_at_once: int
) -> None:
    stub = Stub(delay_s=0.01)
    done = continued(stub, num_missing, concurrency)
    assert len(done.log.records) == num_missing
    assert stub.most_at_once == most_at_once
    (block,) = done.blocks
    assert block.num_requests == num_missing
    assert block.num_repeats == len(stub.requests) - num_missing
    is_load_lower = num_missing < min(concurrency, 4)
    assert bool(block.num_repeats) is is_load_lower


def test_a_server_that_fails_is_not_asked_on_and_on() -> None:
    stub = Stub(fault="500")
    done = continued(stub, num_missing=1, concurrency=4)
    assert len(stub.requests) == 4, "the missing one, and three that kept the load"
    assert [record.status for record in done.log.records] == ["error"]


def begun_at_a_rate(
    monkeypatch: pytest.MonkeyPatch, numbers: Sequence[int], answer_s: float = 2.0
) -> tuple[dict[int, float], dict[int, float]]:
    """Simulated times at which these samples of a block and its repeated ones began, by number."""
    clock = Clock()
    monkeypatch.setattr(blocks_module, "perf_counter", clock.read)
    began_s = clock.now_s
    samples = [s for s in plan_of(["eagle3"], request_rates=(1.0,)).samples if s.task == "maths"]
    begun: dict[int, float] = {}
    repeated: dict[int, float] = {}

    async def work(sample: Sample) -> None:
        begun[samples.index(sample)] = clock.now_s - began_s
        await asyncio.sleep(answer_s)

    async def repeat(sample: Sample) -> bool:
        repeated[samples.index(sample)] = clock.now_s - began_s
        await asyncio.sleep(100)
        return True

    missing = [samples[number] for number in numbers]
    with asyncio.Runner(loop_factory=clock.loop) as runner:
        runner.run(at_load(samples[0].load, missing, 7, work, samples, repeat))
    return begun, repeated


@pytest.mark.parametrize("number", range(4))
def test_at_a_rate_a_request_comes_at_its_time_among_all_others(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    times, none_repeated = begun_at_a_rate(monkeypatch, range(4))
    assert not none_repeated and len(set(times.values())) == 4
    begun, repeated = begun_at_a_rate(monkeypatch, [number])
    assert begun == pytest.approx({number: times[number]})
    ends_s = times[number] + 2
    expected = {i: time for i, time in times.items() if i != number and time < ends_s}
    assert repeated == pytest.approx(expected), "the block ends with its last missing answer"


def test_requests_repeated_at_a_rate_have_no_second_record_and_are_counted() -> None:
    first = run({"eagle3": Stub()}, request_rates=(500.0,))
    stub = Stub(delay_s=0.05)
    done = run({"eagle3": stub}, done=without(first, 1), request_rates=(500.0,))
    assert len(done.log.records) == 1
    (block,) = done.blocks
    assert (block.num_requests, block.num_repeats) == (1, 3)
    assert stub.most_at_once == 4


def test_turns_that_cannot_be_asked_do_not_end_the_load() -> None:
    """A chat whose first turn has failed is repeated up to that turn."""
    first = run({"eagle3": Stub(fault="500", num_faults=1)}, concurrency=(2,))
    chats = [record for record in first.records if record.key.task == "chat"]
    failed = [record.key.sample_id for record in chats if not record.is_ok]
    assert failed == ["chat/1", "chat/1"], "its first turn, and the one that follows"
    rest = [record for record in first.records if record.key.sample_id != "chat/2"]
    stub = Stub(delay_s=0.01)
    done = run({"eagle3": stub}, done=rest, concurrency=(2,))
    assert [record.status for record in done.log.records] == ["ok"]
    assert stub.most_at_once == 2
    assert done.blocks[0].num_repeats == len(stub.requests) - 1 >= 2
