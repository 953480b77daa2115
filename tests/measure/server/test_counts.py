"""The drafts of single answers, from a server's counters that are read between requests."""

from collections.abc import Sequence

import pytest

from specbench.measure.server.openai_api import completions
from tests.measure.server.test_backend import run
from tests.support.stub_server import Stub

COUNTERS = {
    "generation_tokens_total": 50.0,
    "spec_decode_num_accepted_tokens_total": 9.0,
    "spec_decode_num_drafts_total": 4.0,
}


def counting(*, num_drafting: int, num_of_others: int = 0) -> Stub:
    """A server with counters that drafts only for its first `num_drafting` requests.

    During each request, it also counts `num_of_others` tokens for other clients.
    """
    stub = Stub("plain", accepted_per_step=(2,), counters=dict(COUNTERS))

    def answer(prompt: Sequence[int]) -> Sequence[int]:
        if len(stub.requests) > num_drafting:
            stub.accepted_per_step = None
        stub.counters["generation_tokens_total"] += num_of_others
        return (5, 6, 7, 2)

    stub.answer = answer
    return stub


@pytest.mark.parametrize(
    ("concurrency", "num_of_others", "drafts"),
    [(1, 0, [1, 1, 1, 1, 0, 0, 0]), (2, 0, [None] * 7), (1, 5, [None] * 7)],
)
def test_counters_give_the_drafts_of_a_single_answer(
    concurrency: int, num_of_others: int, drafts: list[int | None]
) -> None:
    stub = counting(num_drafting=4, num_of_others=num_of_others)
    done = run({"sps": stub}, protocol=completions(is_chat=True), concurrency=(concurrency,))
    servings = [record.serving for record in done.records]
    assert [serving.num_drafts for serving in servings if serving] == drafts
    accepted = [None if num_drafts is None else 2 * num_drafts for num_drafts in drafts]
    assert [serving.num_accepted for serving in servings if serving] == accepted
    assert sum(block.counters["num_drafts"] for block in done.blocks) == 4.0


def test_an_answers_own_counts_take_precedence() -> None:
    done = run({"sps": Stub(accepted_per_step=(1, 0), counters=dict(COUNTERS))})
    drafts = {
        (record.serving.num_drafts, record.accept_lengths)
        for record in done.records
        if record.serving
    }
    assert drafts == {(2, (2, 1))}


def test_counters_that_come_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers count in one task and answer in another."""
    stub = counting(num_drafting=99)
    current, num_readings = dict(COUNTERS), 0

    async def late(self: object) -> dict[str, float]:
        nonlocal num_readings, current
        num_readings += 1
        if num_readings % 3 == 0:
            current = dict(stub.counters)
        names = zip(("num_tokens", "num_accepted", "num_drafts"), current.values(), strict=True)
        return dict(names)

    monkeypatch.setattr("specbench.measure.server.servers.OpenServer.counters", late)
    done = run({"sps": stub}, protocol=completions(is_chat=True))
    assert [record.serving.num_drafts for record in done.records if record.serving][:3] == [1, 1, 1]
