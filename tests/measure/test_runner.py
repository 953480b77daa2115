"""The runner, with a backend that needs no model.

The order of methods is seeded, and balanced over places and neighbours. Methods keep what they
remember across the prompts of a repeat.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import pytest

from specbench.data.prompts import Prompt
from specbench.errors import MethodFault
from specbench.log.run import NO_LOAD
from specbench.machine.pauses import PauseWatch
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.order import method_order
from specbench.measure.runner import Runner
from specbench.measure.spec import RunSpec
from specbench.methods.recycling import Recycling
from specbench.registry import default_entries, get, names, paper_methods
from specbench.types import Completion, Record, RecordKey, Request, seed_of
from tests.support.backend import Answer, Words, answering, backend_of, fake_plan
from tests.support.texts import assert_in
from tests.support.watching import Watcher


def failing(request: Request) -> Completion:
    raise RuntimeError("the head is on fire\nand more")


PROMPTS = {
    "chat": [Prompt("chat/1", "", ("hello", "again")), Prompt("chat/2", "", ("bye",))],
    "maths": [Prompt("maths/1", "", ("1+1",))],
}
PAIR = {"vanilla": answering(1), "pld": answering(2)}


def run(
    methods: Mapping[str, Answer], spec: RunSpec | None = None, done: Sequence[Record] = ()
) -> tuple[list[Record], Watcher, Words]:
    watcher = Watcher()
    plan = fake_plan(methods, PROMPTS, spec)
    with backend_of(plan) as backend:
        stored = list(Runner(plan, backend, sink=[], progress=watcher).run(done))
    codec = plan.setup.codec
    assert isinstance(codec, Words)
    return stored, watcher, codec


def test_methods_run_in_the_order_of_the_seed() -> None:
    names = ("vanilla", "pld", "sps")
    stored, watcher, _ = run({name: answering(1) for name in names}, RunSpec(seed=4))
    turns = [watcher.started_methods[i : i + 3] for i in range(0, 12, 3)]
    assert turns == [[*method_order(names, 4, number, 0.0, NO_LOAD)] for number in range(4)]
    assert [record.place for record in stored] == [0, 1, 2] * 4


def test_the_order_at_one_temperature_does_not_depend_on_the_others() -> None:
    methods = {name: answering(1) for name in ("vanilla", "pld", "sps", "eagle")}

    def order(*temperatures: float) -> list[str]:
        stored, _, _ = run(methods, RunSpec(temperatures=temperatures))
        return [record.key.method for record in stored if record.key.temperature == 0.0]

    assert order(0.0) == order(0.0, 1.0)


@pytest.mark.parametrize(
    ("history", "contents"), [("shared", {"answer 1"}), ("own", {"answer 1", "answer 2"})]
)
def test_a_history_holds_the_answer_of_the_baseline_or_of_the_method(
    history: Literal["shared", "own"], contents: set[str]
) -> None:
    _, _, codec = run(PAIR, RunSpec(history=history))
    second_turns = [messages for messages in codec.rendered if len(messages) == 3]
    assert len(second_turns) == 2
    assert {messages[1]["content"] for messages in second_turns} == contents


def test_a_history_contains_an_answer_as_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Words, "reply", lambda codec, record: {"role": "", "content": "content"})
    _, _, codec = run(PAIR)
    second_turns = [messages for messages in codec.rendered if len(messages) == 3]
    assert {messages[1]["content"] for messages in second_turns} == {"content"}


def test_a_failing_method_becomes_error_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    methods = {"vanilla": answering(1), "pld": failing}
    stored, watcher, _ = run(methods)
    vanilla = [record for record in stored if record.key.method == "vanilla"]
    assert [record.status for record in vanilla] == ["ok"] * 4
    line = failing.__code__.co_firstlineno + 1
    error = f"RuntimeError: the head is on fire (test_runner.py:{line} in failing)"
    for record in stored:
        if record.key.method == "pld":
            assert record.error == error
            assert record.prefill_s is None
            assert not record.token_ids
    assert not watcher.messages
    logger: Any = logging.getLogger("specbench")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    logger.manager._clear_cache()
    _, watcher, _ = run(methods)
    logger.manager._clear_cache()
    (message,) = watcher.messages
    assert_in(
        message,
        "in failing",
        "the head is on fire\nand more",
    )


def test_only_a_pause_during_a_completion_is_marked() -> None:
    pauses: list[float] = [9.0]  # before the first completion

    class Watch(PauseWatch):
        def take(self) -> float:
            return sum(pauses.pop() for _ in [*pauses])

    def answer(request: Request) -> Completion:
        if len(stored) == 2:
            pauses.append(1.5)
        return answering(1)(request)

    stored: list[Record] = []
    plan = fake_plan({"vanilla": answer}, PROMPTS, None)
    with backend_of(plan) as backend:
        for record in Runner(plan, backend, [], Watcher(), Watch()).run():
            stored.append(record)
    assert [record.is_paused for record in stored] == [False, False, True, False]


def test_a_turn_after_a_failed_baseline_turn_is_an_error_for_all() -> None:
    stored, _, _ = run({"vanilla": failing, "pld": answering(2)})
    second = [r for r in stored if r.key.turn == 1]
    assert {r.error for r in second} == {"Turn 1, which this turn follows, has failed."}


def test_a_resumed_run_does_only_missing_work() -> None:
    whole, _, _ = run(PAIR)
    for cut in range(len(whole)):
        rest, _, codec = run(dict.fromkeys(PAIR, answering(9)), done=whole[:cut])
        assert [r.key for r in rest] == [r.key for r in whole[cut:]]
        if cut == 2:
            assert codec.rendered[0][1]["content"] == "answer 1"


def test_all_methods_share_the_seed_of_a_repeat() -> None:
    key = RecordKey("vanilla", 1.0, "maths", "maths/1", 0, 0).request
    same = RecordKey("pld", 1.0, "maths", "maths/1", 0, 0).request
    other = key._replace(repeat=1)
    seed = seed_of(0, key)
    assert seed == seed_of(0, same)
    assert seed != seed_of(0, other)
    assert seed != seed_of(1, key)


LABELS = ("vanilla", "sps", "pld", "medusa", "hydra", "eagle", "eagle2", "eagle3")


@pytest.mark.parametrize("number", range(1, 11))
def test_each_block_of_orders_balances_places_and_neighbours(number: int) -> None:
    labels = tuple(map(str, range(number)))
    size = number * (1 + number % 2)
    for block in range(2):
        samples = range(block * size, (block + 1) * size)
        rows = [method_order(labels, 3, sample, 1.0, NO_LOAD) for sample in samples]
        for column in zip(*rows, strict=True):
            assert Counter(column) == dict.fromkeys(labels, len(rows) // number)
        follows = Counter(pair for row in rows for pair in pairwise(row))
        assert len(follows) == number * (number - 1)
        assert len({*follows.values()}) <= 1


def test_orders_are_fixed_by_the_seed_and_differ_between_blocks_and_temperatures() -> None:
    def rows(seed: int, temperature: float, first: int = 0) -> list[tuple[str, ...]]:
        numbers = range(first, first + 8)
        return [method_order(LABELS, seed, number, temperature, NO_LOAD) for number in numbers]

    assert rows(1, 0.0) == rows(1, 0.0)
    assert rows(1, 0.0) != rows(2, 0.0)
    assert rows(1, 0.0) != rows(1, 1.0)
    assert rows(1, 0.0) != rows(1, 0.0, first=8)


TWO_PROMPTS = {"maths": [Prompt("maths/1", "", ("1+1",)), Prompt("maths/2", "", ("2+2",))]}


def test_a_repeat_begins_with_empty_memory() -> None:
    plan = fake_plan(PAIR, TWO_PROMPTS, RunSpec(repeats=2))
    with backend_of(plan) as backend:
        list(Runner(plan, backend, sink=[], progress=Watcher()).run())
        remembering: Any = backend
    assert remembering.remembered == ["", "vanilla", "pld", "pld", "vanilla"] * 2


def test_a_method_that_cannot_forget_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(self: Recycling) -> None:
        raise KeyError("table")

    label = "recycling:scope=run"
    request = Request((1, 5, 9), 4)
    setup = make_engine_setup(RunSpec(methods=(label, "recycling"), threads=1))
    scopes = {name: method.scope for name, method in setup.describe().methods.items()}
    assert scopes == {"vanilla": "request", label: "run", "recycling": "request"}
    with EngineBackend(setup) as backend:
        monkeypatch.setattr(Recycling, "forget", forget)
        backend.forget()
        assert backend.complete("vanilla", request).token_ids
        with pytest.raises(MethodFault, match="KeyError: 'table'"):
            backend.complete(label, request)


def test_the_default_run_has_every_method_that_needs_no_training_and_no_file() -> None:
    default = [entry.name for entry in default_entries() if entry.origin == "specbench"]
    assert default == [*paper_methods(), "recycling", "sam", "suffix"]
    assert not any(get(name).weights for name in default[9:])


def test_groups_stand_for_their_methods_once() -> None:
    def spellings(text: str) -> list[str]:
        return [str(method.asked) for method in RunSpec(methods=(text,)).run_methods]

    assert spellings("papers") == paper_methods()
    assert spellings("pld:ngram=2,pld,papers")[:3] == ["pld:ngram=2", "pld", "vanilla"]
    assert set(spellings("all")) == set(names())
