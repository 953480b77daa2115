"""Requests that are repeated alone, at the load that they had beside others."""

import pytest

from specbench.types import Record
from tests.measure.server.test_backend import Done, run
from tests.support.stub_server import Stub


def without(done: Done, num_missing: int) -> list[Record]:
    """The records of a run, except the last ones of the task with four prompts of a turn each."""
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
