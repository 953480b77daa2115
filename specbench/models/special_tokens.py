"""Special tokens in the text of a prompt, encoded as text and not as control tokens.

Each of them is replaced by a mark before the template is rendered. The rendered text is cut at
the marks, and the special token's own text is encoded between the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PRIVATE_USE = range(0xE000, 0xF8FF)
_ANCHORS = ("\n", ".", "a")


@dataclass(frozen=True, slots=True)
class Marked:
    """Messages without special tokens, and the special token that each mark stands for."""

    messages: tuple[Mapping[str, str], ...]
    tokens: Mapping[str, str]


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Texts that the tokenizer reads as control tokens wherever they stand, with their ids."""
    added = tokenizer.added_tokens_decoder.items()
    return {str(token): i for i, token in added if token.special and str(token)}


def mark_special_tokens(messages: Sequence[Mapping[str, str]], special: Sequence[str]) -> Marked:
    """Replace each special token in the messages' content by a character that no message has."""
    text = "".join(message["content"] for message in messages)
    found = sorted({token for token in special if token in text}, key=len, reverse=True)
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in text)
    marks = dict(zip(found, free, strict=False))
    if not marks:
        return Marked(tuple(messages), {})
    pattern = re.compile("|".join(map(re.escape, marks)))

    def marked(content: str) -> str:
        return pattern.sub(lambda match: marks[match[0]], content)

    return Marked(
        tuple({**message, "content": marked(message["content"])} for message in messages),
        {mark: token for token, mark in marks.items()},
    )


def cut(text: str, marked: Marked) -> list[str]:
    """The pieces of a rendered text: before the first mark, the mark, and so on."""
    return re.split(f"([{''.join(marked.tokens)}])", text) if marked.tokens else [text]


def continuation_ids(
    tokenizer: PreTrainedTokenizerBase, pieces: Sequence[str], marked: Marked
) -> list[int]:
    """Token ids of pieces that follow other text. A mark becomes the text of its special token."""
    ids: list[int] = []
    for piece in filter(None, pieces):
        token = marked.tokens.get(piece)
        ids += _following(tokenizer, token or piece, is_plain=token is not None)
    return ids


def _following(tokenizer: PreTrainedTokenizerBase, text: str, *, is_plain: bool) -> list[int]:
    """Token ids of a text in the middle of another: no space is put in front of it."""

    def encoded(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=is_plain)[
            "input_ids"
        ]
        return ids

    for anchor in _ANCHORS:  # one that does not merge with the text
        before, both = encoded(anchor), encoded(anchor + text)
        if both[: len(before)] == before:
            return both[len(before) :]
    return encoded(text)
