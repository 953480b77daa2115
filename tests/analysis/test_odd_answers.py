"""Answers with content that their run did not ask for are counted and reported."""

from dataclasses import replace
from typing import Any

import pytest

from specbench.analysis.metrics import measure
from specbench.report.fact_notes import fact_notes
from specbench.report.warning_notes import warnings
from specbench.types import Record
from tests.analysis.run_factory import header, make_run, record


def sentences_of(key: str, records: list[Record], chat: dict[str, Any] | None) -> list[str]:
    """The sentences with this key in the report on a run whose header has this `chat`."""
    model: dict[str, Any] = {"label": "small"}
    if chat is not None:
        model["chat"] = chat
    run_header = header(("vanilla", "pld"), ("gsm8k",), model=model)
    metrics = measure(make_run(records, run_header))
    return [note.text for note in warnings(metrics) if note.key == key]


def test_answers_that_pass_the_end_of_a_turn_are_counted_by_method() -> None:
    chat = {"ends": {"tokenizer": [2], "chat template": [40]}}
    ending = [
        *(record(sample=sample, token_ids=(5, 6, 7, 40)) for sample in "abc"),
        record("pld", "c", token_ids=(5, 6, 7, 2)),
    ]
    passing = [
        record("pld", "a", token_ids=(5, 40, 7, 2)),
        record("pld", "b", token_ids=(5, 2, 7, 2)),
        record(sample="d", token_ids=(5, 40, 6, 2)),
    ]
    (sentence,) = sentences_of("passed_ends", [*ending, *passing], chat)
    counts = "2 of 3 answers of PLD, 1 of 4 answers of Vanilla"
    assert sentence.startswith(f"{counts} continue after the end of the turn")
    assert sentences_of("passed_ends", ending, chat) == []


def test_a_run_without_recorded_ends_is_not_judged() -> None:
    passing = [record(token_ids=(5, 2, 7, 2))]
    assert sentences_of("passed_ends", passing, None) == []
    assert sentences_of("passed_ends", passing, {"num_bos": 1}) == []


OFF = {"state": "switched", "is_on": False, "values": {"enable_thinking": False}}


@pytest.mark.parametrize("thinking", [None, OFF, {"state": "unknown"}])
def test_think_marks_in_answers_of_a_run_without_thinking_are_counted(thinking: Any) -> None:
    chat = {"thinking": thinking, "think_ids": [90, 91]}

    def answering(text: str) -> Record:
        return replace(record(sample=text, token_ids=(5, 6, 7, 2)), text=text)

    thoughtful = [answering("<think>hm</think>yes"), answering("hm</think>yes")]
    plain = [answering("yes"), answering("The tag <think> opens a thought.")]
    with_special_tokens = record("pld", token_ids=(90, 6, 91, 2))
    (sentence,) = sentences_of("think_marks", [*thoughtful, *plain, with_special_tokens], chat)
    assert sentence.startswith(
        "2 of 4 answers of Vanilla, 1 of 1 answers of PLD have think marks or reasoning"
    )
    assert sentences_of("think_marks", plain, chat) == []
    assert sentences_of("think_marks", [*thoughtful, *plain], None) == []


def test_think_marks_belong_to_a_run_with_thinking() -> None:
    answer = replace(record(), text="hm</think>yes")
    for thinking in (OFF | {"is_on": True}, {"state": "fixed", "is_on": True}):
        assert sentences_of("think_marks", [answer], {"thinking": thinking}) == []


@pytest.mark.parametrize(
    ("thinking", "sentences"),
    [
        (None, []),
        (OFF, ["off (enable_thinking=False)"]),
        (OFF | {"is_on": True, "values": {"mode": "on"}}, ["on (mode=on)"]),
        ({"state": "fixed", "is_on": True}, ["always on: the chat template has no switch"]),
        ({"state": "unknown"}, ["mode unknown"]),
    ],
)
def test_a_report_says_the_mode_if_the_template_has_any(
    thinking: Any, sentences: list[str]
) -> None:
    model = {"label": "small", "chat": {"thinking": thinking}}
    run_header = header(("vanilla",), ("gsm8k",), model=model)
    metrics = measure(make_run([record()], run_header))
    assert [note.text for note in fact_notes(metrics) if note.key == "thinking"] == sentences
