"""The comparison with other programs: same answers, fair turns, and shares of the idle machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from benchmarks import peers


def test_programs_take_turns_on_each_prompt_and_the_first_round_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, order = [0.0], list[tuple[str, int]]()

    def complete(name: str, seconds: float, ids: Sequence[int]) -> int:
        order.append((name, ids[0]))
        clock[0] += seconds if len(order) > 4 else 100.0
        return 10

    monkeypatch.setattr("benchmarks.peers.time.perf_counter", lambda: clock[0])
    found = {"a": partial(complete, "a", 0.5), "b": partial(complete, "b", 2.0)}
    assert peers.rates(found, [(1,), (2,)], rounds=3) == {"a": 20.0, "b": 5.0}
    assert order == [("a", 1), ("b", 1), ("a", 2), ("b", 2)] * 3


@pytest.mark.slow
def test_all_programs_complete_the_same_number_of_tokens() -> None:
    given = peers.parse(["--num-tokens", "8"])
    with peers.peers(given, 1) as found:
        assert {complete(peers.prompt_ids("Hello")) for complete in found.values()} == {8}
    assert len(found) == 6
