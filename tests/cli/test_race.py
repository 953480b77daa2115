"""`specbench race`: live answers and the table of speeds."""

from __future__ import annotations

from io import StringIO
from itertools import count
from pathlib import Path
from time import perf_counter

import pytest
from rich.console import Console

from specbench.cli.race import _View
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.race import Recording, Written, race
from specbench.measure.spec import RunSpec
from specbench.types import Completion, Request, Step
from tests.cli.conftest import Specbench
from tests.support.tiny import CODEC


@pytest.mark.parametrize("more", [(), ("--replay",)])
def test_every_method_answers_and_the_table_has_its_speed(
    specbench: Specbench,
    model: Path,
    more: tuple[str, ...],
) -> None:
    options = ("--model", model, "--template", "none", "--max-new-tokens", 12, "--device", "cpu")
    said = specbench("race", "ab ab ab", "--method", "vanilla,pld:ngram=2", *options, *more, code=0)
    assert "12 tokens in 11 steps" in said.out  # the prefill gives the first token
    assert ("Shown at" in said.out) is ("--replay" in more)

    lines = said.out.splitlines()
    assert any("tokens/s" in line and " speedup " in line for line in lines)
    (vanilla_row,) = [line for line in lines if line.startswith("vanilla ") and "1.00x" in line]
    speedup_steps_and_mat = vanilla_row.split()[2:]  # after the label and the tokens/s
    assert speedup_steps_and_mat == ["1.00x", "11", "1.00"]
    assert any(line.startswith("pld:ngram=2 ") and "x" in line for line in lines)
    assert "specbench run" in lines[-1]


def raced(model: Path, num_tokens: int, methods: tuple[str, ...] = ("vanilla", "pld")) -> Recording:
    """The answers of methods to one prompt, as they were streamed and as a whole."""
    setup = make_engine_setup(RunSpec(str(model), methods, template="none"))
    prompt_ids = setup.codec.render([{"role": "user", "content": "ab ab ab"}])
    recording = Recording()
    recording.done |= race(setup, Request(prompt_ids, num_tokens), recording.watch)
    return recording


def test_the_streamed_tokens_are_the_answer(model: Path) -> None:
    recording = raced(model, num_tokens=12)
    for label, answer in recording.done.items():
        streamed = [written for _, written in recording.written[label]]
        # after the prefill and after each step, except the last one
        steps_so_far = [len(written.accept_lengths) for written in streamed]
        assert steps_so_far == list(range(len(answer.steps)))
        for written in streamed:
            num_written = len(written.token_ids)
            assert num_written == 1 + sum(written.accept_lengths)
            assert written.token_ids == answer.token_ids[:num_written]
        assert answer.decode_s > 0


def test_an_answer_that_the_prefill_ends_is_not_streamed(model: Path) -> None:
    recording = raced(model, num_tokens=1)
    assert recording.written == {}
    assert [len(answer.token_ids) for answer in recording.done.values()] == [1, 1]


def test_watching_costs_an_answer_no_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the watching clock takes 1000 s. Those of the decoding clock take no time."""
    slow_clock = count(step=1000.0)
    monkeypatch.setattr("specbench.measure.race.perf_counter", lambda: next(slow_clock))
    vanilla = raced(model, num_tokens=12, methods=("vanilla",)).done["vanilla"]
    assert vanilla.decode_s < -1000, "the seconds of watching are subtracted"


def test_the_live_text_is_cut_to_the_terminal_and_the_last_one_is_whole() -> None:
    text = "one two three four. " * 30
    ids = tuple(CODEC.tokenizer(text, add_special_tokens=False)["input_ids"])
    written = Written(ids, accept_lengths=(len(ids) - 1,))  # all in one step after the prefill
    terminal = StringIO()
    with _View(Console(file=terminal, force_terminal=True, width=40, height=10), CODEC) as view:
        view.draw("eagle2", written)
        live_text = terminal.getvalue()
        view.finish("eagle2", written)
    last_text = terminal.getvalue().removeprefix(live_text)
    assert 0 < live_text.count("three") < 30
    assert "\x1b[32m" in live_text, "accepted draft tokens are green"
    assert last_text.count("three") == 30


def test_a_replay_shows_the_methods_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The longest answer took 0.04 s, and its replay takes 0.4 s."""
    monkeypatch.setattr("specbench.cli.race._REPLAY_S", 0.4)
    ids = tuple(CODEC.tokenizer("one two three", add_special_tokens=False)["input_ids"])
    steps = (Step(1, len(ids) - 1),)
    recording = Recording(
        done={
            "vanilla": Completion(ids, "eos", steps, prefill_s=0.01, decode_s=0.02),
            "eagle2": Completion(ids, "eos", steps, prefill_s=0.02, decode_s=0.02),
        }
    )
    for label in recording.done:
        recording.watch(label, Written(ids[:1], ()))
    # for each method, the prefill's token and the whole answer
    times = [(round(seconds, 3), label) for seconds, label, _ in recording.timeline()]
    assert times == [(0.01, "vanilla"), (0.02, "eagle2"), (0.03, "vanilla"), (0.04, "eagle2")]

    terminal = StringIO()
    began_s = perf_counter()
    with _View(Console(file=terminal, force_terminal=True, width=60, height=20), CODEC) as view:
        view.replay(recording)
    assert perf_counter() - began_s >= 0.4
    screen = terminal.getvalue()
    last_headings = screen.rpartition("vanilla")[2].splitlines()[0]
    assert "eagle2" in last_headings, "the methods are in columns"
    assert screen.count(f"{len(ids)} tokens in 1 steps") >= 2
    assert "Shown at 1/10 of their speed." in screen
