"""Chats in the layouts of public data sets: lists of `messages`, and ShareGPT's `conversations`.

Chats that cannot be trained on are left out and counted by reason; a row in an unknown layout
is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LISTS = ("messages", "conversations")
_ROLES = {
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant",
    "system": "system",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """One entry of a file of training text. Plain text is an answer without a turn.

    What a target wrote itself is there as tokens: `ids`, of which the first `num_prompt` ask.
    """

    turns: tuple[str, ...]
    answers: tuple[str, ...]
    ids: tuple[int, ...] = ()
    num_prompt: int = 0


def read_chat(row: dict[str, Any], left_out: Counter[str]) -> Example | None:
    """The requests and answers of a chat; None if it has to be left out.

    Raises:
        ValueError: the chat is not a list of messages.
    """
    roles: list[str] = []
    texts: list[str] = []
    for role, text in _messages(row):
        if role not in _ROLES.values():
            left_out[f"chats with a message of role {role!r}"] += 1
            return None
        if role == "system":
            left_out["system messages"] += 1
        elif not roles and role == "assistant":
            left_out["answers before the first request"] += 1
        elif not text.strip():
            left_out["ends of chats from an empty message on"] += 1
            break
        elif roles and roles[-1] == role:
            left_out["chats whose messages do not alternate"] += 1
            return None
        else:
            roles.append(role)
            texts.append(text)
    is_open = len(texts) % 2 == 1
    if is_open:
        texts.pop()
    if not texts:
        left_out["chats without an answer"] += 1
        return None
    left_out["last requests without an answer"] += is_open
    return Example(tuple(texts[::2]), tuple(texts[1::2]))


def _messages(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The role and the text of each message."""
    name = next(name for name in LISTS if name in row)
    if not isinstance(row[name], list):
        raise ValueError(f"`{name}` is not a list")
    for message in row[name]:
        if not isinstance(message, dict):
            raise ValueError(f"`{name}` holds something that is not a message")
        role = message.get("role", message.get("from"))
        text = message.get("content", message.get("value"))
        if isinstance(text, list):  # parts, of which a chat of text has one
            text = "".join(part.get("text", "") for part in text if isinstance(part, dict))
        if not isinstance(role, str):
            raise ValueError(f"a message of `{name}` has no role")
        yield _ROLES.get(role.lower(), role), text if isinstance(text, str) else ""
