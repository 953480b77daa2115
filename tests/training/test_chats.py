"""Reading chats of public data sets, and the reasons for leaving some out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UserError
from specbench.training.examples import Example, read_chat, read_examples


def chat(*messages: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in messages]}


def test_messages_and_sharegpt_give_the_same_example_as_lines_or_as_an_array(
    tmp_path: Path,
) -> None:
    rows = [
        {"turns": ["a", "c"], "reference": ["b", "d"]},
        chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")),
        {
            "id": "x",
            "conversations": [
                {"from": speaker, "value": text}
                for speaker, text in (("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d"))
            ],
        },
        chat(("user", [{"type": "text", "text": "a"}]), ("assistant", "b"), ("user", "c"),
             ("assistant", "d")),
    ]  # fmt: skip
    lines, array = tmp_path / "chats.jsonl", tmp_path / "chats.json"
    lines.write_text("\n".join(json.dumps(row) for row in rows))
    array.write_text(json.dumps(rows, indent=1))
    left_out: Counter[str] = Counter()
    for path in (lines, array):
        assert read_examples(path, left_out) == [Example(("a", "c"), ("b", "d"))] * 4
    assert not +left_out


ANSWERED = Example(("a",), ("b",))


@pytest.mark.parametrize(
    ("messages", "example", "reason"),
    [
        ([("system", "s"), ("user", "a"), ("assistant", "b")], ANSWERED, "system"),
        ([("assistant", "x"), ("user", "a"), ("assistant", "b")], ANSWERED, "before the first"),
        ([("user", "a"), ("assistant", "b"), ("user", "c")], ANSWERED, "last requests"),
        ([("user", "a"), ("assistant", "b"), ("user", " ")], ANSWERED, "empty"),
        ([("user", "a"), ("user", "b")], None, "do not alternate"),
        ([("user", "a"), ("tool", "b")], None, "role 'tool'"),
        ([("user", "a")], None, "without an answer"),
        ([], None, "without an answer"),
    ],
)
def test_chats_that_cannot_be_trained_on_are_left_out_with_a_reason(
    messages: list[tuple[str, str]], example: Example | None, reason: str
) -> None:
    left_out: Counter[str] = Counter()
    assert read_chat(chat(*messages), left_out) == example
    assert reason in " ".join(+left_out)


def test_an_entry_that_is_no_chat_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([chat(("user", "a"), ("assistant", "b")), {"messages": "none"}]))
    with pytest.raises(UserError, match="entry 2: `messages` is not a list"):
        read_examples(path, Counter())
    path.write_text("[1, ")
    with pytest.raises(UserError, match=r"chats\.json: "):
        read_examples(path, Counter())
