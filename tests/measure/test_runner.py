"""The runner with a backend that needs no model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from specbench.data.prompts import Prompt
from specbench.log.loads import NO_LOAD
from specbench.machine.sampler import PauseWatch
from specbench.measure.runner import MethodOrder, Runner
from specbench.measure.spec import RunSpec
from specbench.types import Completion, Record, RecordKey, Request, seed_of
from tests.support.backend import Answer, Words, answering, backend_of, fake_plan
from tests.support.watching import Watcher


def failing(request: Request) -> Completion:
    raise RuntimeError("the head is on fire\nand more")


PROMPTS = {
    "chat": [Prompt("chat/1", "", ("hello", "again")), Prompt("chat/2", "", ("bye",))],
    "maths": [Prompt("maths/1", "", ("1+1",))],
}


class Sink:
    def __init__(self, stored: list[Record]) -> None:
        self.append = stored.append


def run(
    methods: Mapping[str, Answer],
    spec: RunSpec | None = None,
    done: Sequence[Record] = (),
) -> tuple[list[Record], Watcher, Words, Runner]:
    watcher, plan = Watcher(), fake_plan(methods, PROMPTS, spec)
    stored: list[Record] = []

    with backend_of(plan) as backend:
        runner = Runner(plan, backend, sink=Sink(stored), progress=watcher)
        list(runner.run(done))
    codec = plan.setup.codec
    assert isinstance(codec, Words)
    return stored, watcher, codec, runner


def test_every_method_turn_and_repeat_is_run_once() -> None:
    methods = {"vanilla": answering(1), "pld": answering(2)}
    stored, _, _, runner = run(methods, RunSpec(repeats=2, temperatures=(0.0, 1.0)))
    keys = [record.key for record in stored]
    assert len(keys) == len(set(keys)) == 2 * 2 * 2 * 4
    assert set(keys) == set(runner.plan.keys)


def test_methods_run_in_the_seeds_order_which_records_hold() -> None:
    names = ("vanilla", "pld", "sps")
    stored, watcher, _, _ = run({name: answering(1) for name in names}, RunSpec(seed=4))
    order = MethodOrder(names, 4)
    turns = [watcher.started_methods[i : i + 3] for i in range(0, 12, 3)]
    assert turns == [[*order.at(number, 0.0, NO_LOAD)] for number in range(4)]
    assert [record.place for record in stored] == [0, 1, 2] * 4


def test_the_order_at_one_temperature_does_not_depend_on_the_others() -> None:
    methods = {name: answering(1) for name in ("vanilla", "pld", "sps", "eagle")}

    def order(*temperatures: float) -> list[str]:
        stored, _, _, _ = run(methods, RunSpec(temperatures=temperatures))
        return [record.key.method for record in stored if record.key.temperature == 0.0]

    assert order(0.0) == order(0.0, 1.0)


@pytest.mark.parametrize(
    ("history", "told"), [("shared", {"answer 1"}), ("own", {"answer 1", "answer 2"})]
)
def test_a_history_holds_the_answer_of_the_baseline_or_of_the_method(
    history: Literal["shared", "own"], told: set[str]
) -> None:
    _, _, codec, _ = run({"vanilla": answering(1), "pld": answering(2)}, RunSpec(history=history))
    second_turns = [messages for messages in codec.rendered if len(messages) == 3]
    assert len(second_turns) == 2 and {m[1]["content"] for m in second_turns} == told


def test_a_failing_method_becomes_error_records_and_the_run_goes_on() -> None:
    stored, _, _, _ = run({"vanilla": answering(1), "pld": failing})
    by_method = {name: [r for r in stored if r.key.method == name] for name in ("vanilla", "pld")}
    assert [r.status for r in by_method["vanilla"]] == ["ok"] * 4
    place = "(test_runner.py:22 in failing)"
    assert {r.error for r in by_method["pld"]} == {f"RuntimeError: the head is on fire {place}"}
    assert all(r.prefill_s is None and not r.token_ids for r in by_method["pld"])


def test_debug_shows_the_traceback_of_an_error_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run({"vanilla": answering(1), "pld": failing})[1].messages
    monkeypatch.setattr(logging.getLogger("specbench"), "level", logging.DEBUG)
    logging.getLogger("specbench").manager._clear_cache()  # type: ignore[attr-defined]
    (told,) = run({"vanilla": answering(1), "pld": failing})[1].messages
    logging.getLogger("specbench").manager._clear_cache()  # type: ignore[attr-defined]
    assert "in failing" in told and "the head is on fire\nand more" in told


def test_a_completion_in_which_the_machine_paused_is_marked_and_an_earlier_pause_is_not() -> None:
    pauses: list[float] = [9.0]  # before the first completion

    class Watch(PauseWatch):
        def take(self) -> float:
            return sum(pauses.pop() for _ in [*pauses])

    def answer(request: Request) -> Completion:
        pauses.extend([1.5] * (len(stored) == 2))
        return answering(1)(request)

    stored: list[Record] = []
    plan = fake_plan({"vanilla": answer}, PROMPTS, None)
    with backend_of(plan) as backend:
        for one in Runner(plan, backend, Sink([]), Watcher(), Watch()).run():
            stored.append(one)
    assert [one.is_paused for one in stored] == [False, False, True, False]


def test_a_turn_after_a_failed_baseline_turn_is_an_error_for_all() -> None:
    stored, _, _, _ = run({"vanilla": failing, "pld": answering(2)})
    second = [r for r in stored if r.key.turn == 1]
    assert {r.error for r in second} == {"Turn 0, which this turn follows, has failed."}


def test_a_resumed_run_does_only_what_is_missing_and_keeps_the_history() -> None:
    methods = {"vanilla": answering(1), "pld": answering(2)}
    whole, _, _, _ = run(methods)
    for cut in range(len(whole)):
        rest, _, codec, _ = run({n: answering(9) for n in methods}, done=whole[:cut])
        assert [r.key for r in rest] == [r.key for r in whole[cut:]]
        if cut == 2:
            assert codec.rendered[0][1]["content"] == "answer 1"


def test_a_sample_has_the_same_seed_for_every_method_and_another_for_every_repeat() -> None:
    key = RecordKey("vanilla", 1.0, "maths", "maths/1", 0, 0).request
    same = RecordKey("pld", 1.0, "maths", "maths/1", 0, 0).request
    other = key._replace(repeat=1)
    assert seed_of(0, key) == seed_of(0, same) != seed_of(0, other)
    assert seed_of(0, key) != seed_of(1, key)
