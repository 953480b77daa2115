"""Answers with something that their run did not ask for are counted and told."""

from typing import Any

from specbench.analysis.metrics import measure
from specbench.report.warning_notes import warnings
from specbench.types import Record
from tests.analysis.run_factory import header, make_run, record


def told(key: str, records: list[Record], chat: dict[str, Any] | None) -> list[str]:
    """The sentences of that key in the report of a run whose header has this `chat`."""
    model = {"label": "small", "chat": chat} if chat is not None else {"label": "small"}
    run = measure(make_run(records, header(("vanilla", "pld"), ("gsm8k",), model=model)))
    return [note.text for note in warnings(run) if note.key == key]


def test_answers_that_pass_the_end_of_a_turn_are_counted_by_method() -> None:
    chat = {"ends": {"tokenizer": [2], "chat template": [40]}}
    good = [record(sample=name, token_ids=(5, 6, 7, 40)) for name in "abc"]
    bad = [
        record("pld", name, token_ids=(5, last, 7, 2)) for name, last in {"a": 40, "b": 2}.items()
    ]
    rest = [record("pld", "c", token_ids=(5, 6, 7, 2)), record(sample="d", token_ids=(5, 40, 6, 2))]
    (sentence,) = told("passed_ends", [*good, *bad, *rest], chat)
    assert sentence.startswith("2 of 3 answers of PLD, 1 of 4 answers of Vanilla pass a turn's end")
    assert told("passed_ends", [*good, *rest[:1]], chat) == []


def test_a_run_without_recorded_ends_is_not_judged() -> None:
    passing = [record(token_ids=(5, 2, 7, 2))]
    assert told("passed_ends", passing, None) == told("passed_ends", passing, {"num_bos": 1}) == []
