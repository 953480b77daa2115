"""`specbench race`: live answers and the table of speeds."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from time import perf_counter

import pytest
from rich.console import Console

from specbench.cli.race import _View
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.race import Recording, Written, race
from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model
from specbench.models.chat import load_codec
from specbench.types import Completion, Request, Step
from specbench.zoo import TINY
from tests.cli.conftest import Specbench


@pytest.mark.parametrize("more", [(), ("--replay",)])
def test_every_method_answers_and_the_table_has_its_speed(
    specbench: Specbench, model: Path, more: tuple[str, ...]
) -> None:
    options = ("--model", model, "--template", "none", "--max-new-tokens", 12, "--device", "cpu")
    said = specbench("race", "ab ab ab", "--method", "vanilla,pld:ngram=2", *options, *more)
    assert said.code == 0
    lines = said.out.splitlines()
    assert "12 tokens in 11 steps" in said.out and ("Shown at" in said.out) is bool(more)
    assert any("tokens/s" in line and " speedup " in line for line in lines)
    (row,) = [line.split() for line in lines if line.startswith("vanilla ") and "1.00x" in line]
    assert row[2:] == ["1.00x", "11", "1.00"]
    assert any(line.startswith("pld:ngram=2 ") and "x" in line for line in lines)
    assert "specbench run" in lines[-1]


def test_the_streamed_tokens_are_the_answer_and_cost_no_time(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make_engine_setup(RunSpec(str(model), ("vanilla", "pld"), template="none"))
    request = Request(setup.codec.render([{"role": "user", "content": "ab ab ab"}]), 12)
    seen: dict[str, list[Written]] = {"vanilla": [], "pld": []}
    for label, done in race(setup, request, lambda label, written: seen[label].append(written)):
        assert [len(call.accept_lengths) for call in seen[label]] == list(range(len(done.steps)))
        for call in seen[label]:
            assert len(call.token_ids) == 1 + sum(call.accept_lengths)
            assert done.token_ids[: len(call.token_ids)] == call.token_ids
        assert done.decode_s > 0
    slow = iter(range(0, 10**6, 1000))
    monkeypatch.setattr("specbench.measure.race.perf_counter", lambda: float(next(slow)))
    (_, done), *_ = race(replace(setup, methods=setup.methods[:1]), request, lambda *_: None)
    assert done.decode_s < -1000, "a thousand seconds of watching a step are taken off"


def test_the_live_text_is_cut_to_the_terminal_and_the_last_one_is_whole() -> None:
    codec = load_codec(TINY / "target", find_model("tiny"), "auto")
    ids = tuple(codec.tokenizer("one two three four. " * 30, add_special_tokens=False)["input_ids"])
    written = Written(ids, (len(ids) - 1,))
    console = Console(file=StringIO(), force_terminal=True, width=40, height=10)
    with _View(console, codec) as view:
        view.draw("eagle2", written)
        assert isinstance(console.file, StringIO)
        live = console.file.getvalue()
        view.finish("eagle2", written)
    assert 0 < live.count("three") < 30
    assert "\x1b[32m" in live, "accepted draft tokens are green"
    assert console.file.getvalue()[len(live) :].count("three") == 30


def test_a_replay_shows_the_methods_beside_each_other_at_its_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specbench.cli.race._REPLAY_S", 0.4)
    codec = load_codec(TINY / "target", find_model("tiny"), "auto")
    ids = tuple(codec.tokenizer("one two three", add_special_tokens=False)["input_ids"])
    done = [Completion(ids, "eos", (Step(1, len(ids) - 1),), 0.01 * i, 0.02) for i in (1, 2)]
    recording = Recording(done={"vanilla": done[0], "eagle2": done[1]})
    for label in recording.done:
        recording.watch(label, Written(ids[:1], ()))
    times = [(round(seconds, 3), label) for seconds, label, _ in recording.timeline()]
    assert times == [(0.01, "vanilla"), (0.02, "eagle2"), (0.03, "vanilla"), (0.04, "eagle2")]
    console = Console(file=StringIO(), force_terminal=True, width=60, height=20)
    began = perf_counter()
    with _View(console, codec) as view:
        view.replay(recording)
    assert perf_counter() - began >= 0.04 / 0.1, "ten times as slow as it was"
    assert isinstance(console.file, StringIO)
    last = console.file.getvalue().rpartition("vanilla")[2].splitlines()[0]
    assert "eagle2" in last, "in columns beside each other"
    assert console.file.getvalue().count(f"{len(ids)} tokens in 1 steps") >= 2
    assert "Shown at 1/10 of their speed." in console.file.getvalue()
