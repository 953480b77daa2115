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
    assert "12 tokens in 11 steps" in said.out
    assert ("Shown at" in said.out) is ("--replay" in more)
    assert any("tokens/s" in line and " speedup " in line for line in lines)
    (of_vanilla,) = [line for line in lines if line.startswith("vanilla ") and "1.00x" in line]
    assert of_vanilla.split()[2:] == ["1.00x", "11", "1.00"]
    assert any(line.startswith("pld:ngram=2 ") and "x" in line for line in lines)
    assert "specbench run" in lines[-1]


def test_the_streamed_tokens_are_the_answer_and_cost_no_time(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make_engine_setup(RunSpec(str(model), ("vanilla", "pld"), template="none"))
    prompt_ids = setup.codec.render([{"role": "user", "content": "ab ab ab"}])
    request = Request(prompt_ids, 12)
    streamed: dict[str, list[Written]] = {"vanilla": [], "pld": []}

    def watch(label: str, written: Written) -> None:
        streamed[label].append(written)

    for label, done in race(setup, request, watch):
        num_steps = [len(written.accept_lengths) for written in streamed[label]]
        assert num_steps == list(range(len(done.steps)))
        for written in streamed[label]:
            assert len(written.token_ids) == 1 + sum(written.accept_lengths)
            assert done.token_ids[: len(written.token_ids)] == written.token_ids
        assert done.decode_s > 0

    num_shown = {label: len(shown) for label, shown in streamed.items()}
    for label, done in race(setup, Request(prompt_ids, 1), watch):
        assert len(streamed[label]) == num_shown[label], "the prefill ends the answer"
        assert len(done.token_ids) == 1

    slow_clock = iter(range(0, 10**6, 1000))
    monkeypatch.setattr("specbench.measure.race.perf_counter", lambda: float(next(slow_clock)))
    vanilla_alone = replace(setup, methods=setup.methods[:1])
    ((_, done),) = race(vanilla_alone, request, lambda *_: None)
    assert done.decode_s < -1000, "a thousand seconds of watching a step are taken off"


def test_the_live_text_is_cut_to_the_terminal_and_the_last_one_is_whole() -> None:
    codec = load_codec(TINY / "target", find_model("tiny"), "auto")
    text = "one two three four. " * 30
    ids = tuple(codec.tokenizer(text, add_special_tokens=False)["input_ids"])
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
    steps = (Step(1, len(ids) - 1),)
    recording = Recording(
        done={
            "vanilla": Completion(ids, "eos", steps, prefill_s=0.01, decode_s=0.02),
            "eagle2": Completion(ids, "eos", steps, prefill_s=0.02, decode_s=0.02),
        }
    )
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
    screen = console.file.getvalue()
    last_headings = screen.rpartition("vanilla")[2].splitlines()[0]
    assert "eagle2" in last_headings, "in columns beside each other"
    assert screen.count(f"{len(ids)} tokens in 1 steps") >= 2
    assert "Shown at 1/10 of their speed." in screen
