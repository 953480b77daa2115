"""Special tokens in the texts of messages, which become text instead of control tokens.

Each is replaced by a mark, a character without a meaning, before the template is rendered.
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
"""Code points without a meaning, from which the marks are taken."""
_ANCHORS = ("\n", ".", "a")
"""Texts to put before another text, so that it is encoded as the middle of a text."""


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Texts that the tokenizer reads as control tokens wherever they stand, with their ids."""
    added_tokens = tokenizer.added_tokens_decoder.items()
    return {str(token): i for i, token in added_tokens if token.special and str(token)}


class Marked(NamedTuple):
    """Messages in which unused characters, the marks, replace special tokens."""

    messages: Sequence[Message]
    """Messages with the marks."""
    token_of: Mapping[str, str]
    """Mark -> the special token that it replaces."""


def unused_characters(messages: Sequence[Message]) -> Iterator[str]:
    """Characters without a meaning that no message contains."""
    contents = "".join(str(text) for message in messages for text in message.values())
    return (chr(code) for code in _PRIVATE_USE if chr(code) not in contents)


def mark_special(messages: Sequence[Message], special: Sequence[str]) -> Marked:
    """Replace the `special` tokens in the messages' text by marks."""
    contents = "".join(str(text) for message in messages for text in message.values())
    present = {token for token in special if token in contents}
    longest_first = sorted(present, key=len, reverse=True)  # a token may begin with another
    mark_of = dict(zip(longest_first, unused_characters(messages), strict=False))
    if not mark_of:
        return Marked(messages, {})
    any_token = re.compile("|".join(map(re.escape, mark_of)))

    def with_marks(text: Any) -> Any:
        is_text = isinstance(text, str)  # not a list, as of tools
        return any_token.sub(lambda match: mark_of[match[0]], text) if is_text else text

    marked_messages = [
        {name: with_marks(text) for name, text in message.items()} for message in messages
    ]
    return Marked(marked_messages, {mark: token for token, mark in mark_of.items()})


def ids_in_the_middle(
    tokenizer: PreTrainedTokenizerBase, text: str, *, is_plain: bool
) -> list[int]:
    """Token ids of a text in the middle of another: no space is put in front of it.

    With `is_plain`, special tokens in it are encoded as text.
    """
    encode = partial(tokenizer, add_special_tokens=False, split_special_tokens=is_plain)
    for anchor in _ANCHORS:
        anchor_ids = encode(anchor)["input_ids"]
        joint_ids = encode(anchor + text)["input_ids"]
        has_not_merged = joint_ids[: len(anchor_ids)] == anchor_ids
        if has_not_merged:
            return list(joint_ids[len(anchor_ids) :])
    return list(encode(text)["input_ids"])
