"""Servers that send reasoning separately, and count tokens that they do not send."""

import json

import pytest
from msgspec import UNSET

from specbench.measure.server.answer_reader import AnswerReader
from specbench.measure.server.openai_api import completions
from specbench.measure.server.records import make_record
from specbench.measure.server.stream import RequestFailed
from specbench.types import Record, RecordKey, Request
from tests.support.tiny import CODEC

KEY = RecordKey("vanilla", 0.0, "chat", "chat/0", 0, 0)


def record_of(
    deltas: list[dict[str, str]], num_counted: int, reasoning_tokens: int | None = None
) -> Record:
    """The record of an answer that arrives in these pieces.

    The server counts `num_counted` tokens, and says that `reasoning_tokens` of them are reasoning.
    """
    reader = AnswerReader(completions(is_chat=True), sent=1.0, budget=64)
    for i, delta in enumerate(deltas):
        choice = {"delta": delta, "finish_reason": None if i + 1 < len(deltas) else "stop"}
        reader.feed(f"data: {json.dumps({'choices': [choice]})}\n\n".encode(), 2.0 + i)
    usage = {
        "completion_tokens": num_counted,
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }
    last_event = {"choices": [], "usage": usage}
    reader.feed(f"data: {json.dumps(last_event)}\n\n".encode(), 9.0)
    request = Request((1, 2, 3), 64, eos_ids=CODEC.eos_ids)
    return make_record(KEY, request, reader.finish(), CODEC, began=0.0, is_prompt_sent=False)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_hidden_tokens_beside_reasoning_are_kept_with_their_number(name: str) -> None:
    deltas = [{name: " one two"}, {name: " three", "content": " the river"}, {"content": " flows"}]
    num_sent = len(CODEC.token_ids(" one two three the river flows"))
    record = record_of(deltas, num_sent + 23)
    assert record.is_ok and record.num_tokens == num_sent + 23
    assert record.serving is not None
    assert (record.serving.num_reasoning, record.serving.num_hidden) == (14, 23)
    assert CODEC.reply(record)["content"] == " the river flows"


def test_a_count_without_a_reason_is_refused() -> None:
    content = [{"content": " the river flows"}]
    num_sent = len(CODEC.token_ids(" the river flows"))
    with pytest.raises(RequestFailed, match="but its text has about"):
        record_of(content, num_sent + 23)
    with pytest.raises(RequestFailed, match="but its text has about"):
        record_of([{"reasoning": " one two three and more of it all"}, *content], 2)


def test_hidden_reasoning_is_kept_with_its_number() -> None:
    content = [{"content": " the river flows"}]
    num_sent = len(CODEC.token_ids(" the river flows"))
    record = record_of(content, num_sent + 23, reasoning_tokens=22)
    assert record.is_ok and record.num_tokens == num_sent + 23
    assert record.serving is not None
    assert (record.serving.num_reasoning, record.serving.num_hidden) == (UNSET, 23)
    with pytest.raises(RequestFailed, match="but its text has about"):
        record_of(content, num_sent + 23, reasoning_tokens=9)


def test_reasoning_after_content_is_part_of_the_content() -> None:
    record = record_of([{"content": " the river"}, {"reasoning": " hm"}, {"content": " flows"}], 5)
    assert record.serving is not None and not record.serving.num_reasoning
    assert CODEC.reply(record)["content"] == " the river hm flows"
