"""Make special tokens in the text of messages plain text instead of control tokens.

Before the template is rendered, a mark replaces each of them. A mark is a character that has no
meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.models.templates import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PRIVATE_USE = range(0xE000, 0xF8FF)
"""The code points that marks are taken from. They have no meaning."""
_ANCHORS = ("\n", ".", "a")
"""Texts to put before another text, so that it is encoded as the middle of a text."""


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the texts that the tokenizer always reads as control tokens, with their ids."""
    added_tokens = tokenizer.added_tokens_decoder.items()
    return {str(token): i for i, token in added_tokens if token.special and str(token)}


class Marked(NamedTuple):
    """Messages whose special tokens are replaced by marks. A mark is an unused character."""

    messages: Sequence[Message]
    """Messages with the marks."""
    token_of: Mapping[str, str]
    """Mark -> the special token that it replaces."""


def unused_characters(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the characters that have no meaning and are in no message."""
    contents = "".join(str(text) for message in messages for text in message.values())
    return (chr(code) for code in _PRIVATE_USE if chr(code) not in contents)


def mark_special(messages: Sequence[Message], special: Sequence[str]) -> Marked:
    """Replace the `special` tokens in the messages' text by marks."""
    contents = "".join(str(text) for message in messages for text in message.values())
    present = [token for token in special if token in contents]
    longest_first = sorted(present, key=len, reverse=True)  # a token may begin with another
    mark_of = dict(zip(longest_first, unused_characters(messages), strict=False))
    if not mark_of:
        return Marked(messages, {})
    any_token = re.compile("|".join(map(re.escape, mark_of)))

    def with_marks(text: Any) -> Any:
        is_text = isinstance(text, str)  # some fields, such as tools, are lists
        return any_token.sub(lambda match: mark_of[match[0]], text) if is_text else text

    marked_messages = [
        {name: with_marks(text) for name, text in message.items()} for message in messages
    ]
    return Marked(marked_messages, {mark: token for token, mark in mark_of.items()})


def ids_in_the_middle(
    tokenizer: PreTrainedTokenizerBase, text: str, *, is_plain: bool
) -> list[int]:
    """Return the token ids of a text inside another text, so that no space is put in front of it.

    With `is_plain`, special tokens in the text are encoded as text.
    """
    encode = partial(tokenizer, add_special_tokens=False, split_special_tokens=is_plain)
    for anchor in _ANCHORS:
        anchor_ids = encode(anchor)["input_ids"]
        joint_ids = encode(anchor + text)["input_ids"]
        has_not_merged = joint_ids[: len(anchor_ids)] == anchor_ids
        if has_not_merged:
            return list(joint_ids[len(anchor_ids) :])
    return list(encode(text)["input_ids"])
