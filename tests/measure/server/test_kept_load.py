"""Requests of a continued block: others are repeated beside them, so that the load stays."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from specbench.measure.base import Sample
from specbench.measure.server import blocks as blocks_module
from specbench.measure.server.blocks import at_load
from specbench.types import Record
from tests.measure.server.test_backend import Done, plan_of, run
from tests.support.stub_server import Stub
from tests.support.virtual_server import Clock


def without(done: Done, num_missing: int) -> list[Record]:
    """The run's records without the last ones of `maths`, a task of four prompts of one turn."""
    of_maths = [record for record in done.records if record.key.task == "maths"]
    missing = of_maths[-num_missing:]
    return [record for record in done.records if record not in missing]


def continued(stub: Stub, num_missing: int, **load: Any) -> Done:
    """A run at this load, continued when `num_missing` requests of one block are left."""
    first = run({"eagle3": Stub()}, **load)
    return run({"eagle3": stub}, done=without(first, num_missing), **load)


@pytest.mark.parametrize(
    ("num_missing", "concurrency", "most_at_once"),
    [(1, 4, 4), (2, 3, 3), (1, 8, 4), (1, 1, 1), (4, 4, 4), (3, 2, 2)],
)
def test_other_requests_of_the_block_keep_the_load_and_have_no_second_record(
    num_missing: int, concurrency: int, most_at_once: int
) -> None:
    stub = Stub(delay_s=0.01)
    done = continued(stub, num_missing, concurrency=(concurrency,))
    assert len(done.log.records) == num_missing
    assert stub.most_at_once == most_at_once
    (block,) = done.blocks
    assert block.num_requests == num_missing
    assert block.num_repeats == len(stub.requests) - num_missing
    is_load_lower = num_missing < min(concurrency, 4)
    assert bool(block.num_repeats) is is_load_lower


def test_a_failing_server_is_not_asked_repeatedly() -> None:
    stub = Stub(fault="500")
    done = continued(stub, num_missing=1, concurrency=(4,))
    assert len(stub.requests) == 4, "one is missing, and three keep the load"
    assert [record.status for record in done.log.records] == ["error"]


class Begun(NamedTuple):
    """Simulated times at which the samples of a block began, by their number."""

    missing: dict[int, float]
    repeated: dict[int, float]


def begun_at_a_rate(monkeypatch: pytest.MonkeyPatch, missing: Sequence[int]) -> Begun:
    """The times in a block with these missing samples, whose answers take two seconds."""
    clock = Clock()
    monkeypatch.setattr(blocks_module, "perf_counter", clock.read)
    began_s = clock.now_s
    plan = plan_of(["eagle3"], request_rates=(1.0,))
    samples = [sample for sample in plan.samples if sample.task == "maths"]
    begun = Begun({}, {})

    async def work(sample: Sample) -> None:
        begun.missing[samples.index(sample)] = clock.now_s - began_s
        await asyncio.sleep(2)

    async def repeat(sample: Sample) -> bool:
        begun.repeated[samples.index(sample)] = clock.now_s - began_s
        await asyncio.sleep(100)
        return True

    to_answer = [samples[number] for number in missing]
    block = at_load(samples[0].load, to_answer, 7, work, samples, repeat)
    with asyncio.Runner(loop_factory=clock.loop) as runner:
        runner.run(block)
    return begun


@pytest.mark.parametrize("number", range(4))
def test_at_a_rate_repeated_requests_keep_their_times(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    whole = begun_at_a_rate(monkeypatch, range(4))
    assert not whole.repeated
    times = whole.missing
    assert len(set(times.values())) == 4
    begun = begun_at_a_rate(monkeypatch, [number])
    assert begun.missing == pytest.approx({number: times[number]})
    ends_s = times[number] + 2
    expected = {i: time for i, time in times.items() if i != number and time < ends_s}
    assert begun.repeated == pytest.approx(expected), "the block ends with its missing answer"


def test_requests_repeated_at_a_rate_have_no_second_record_and_are_counted() -> None:
    stub = Stub(delay_s=0.05)
    done = continued(stub, num_missing=1, request_rates=(500.0,))
    assert len(done.log.records) == 1
    (block,) = done.blocks
    assert block.num_requests == 1
    assert block.num_repeats == 3
    assert stub.most_at_once == 4


def test_turns_after_a_failed_one_do_not_end_the_load() -> None:
    """A chat is repeated up to the turn that failed, here its first."""
    first = run({"eagle3": Stub(fault="500", num_faults=1)}, concurrency=(2,))
    chats = [record for record in first.records if record.key.task == "chat"]
    failed = [record.key.sample_id for record in chats if not record.is_ok]
    assert failed == ["chat/1", "chat/1"], "the first turn and the turn that follows it"
    rest = [record for record in first.records if record.key.sample_id != "chat/2"]
    stub = Stub(delay_s=0.01)
    done = run({"eagle3": stub}, done=rest, concurrency=(2,))
    assert [record.status for record in done.log.records] == ["ok"]
    assert stub.most_at_once == 2
    assert done.blocks[0].num_repeats == len(stub.requests) - 1 >= 2
