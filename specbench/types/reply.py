"""Split the text of an answer into its reasoning and the content that the user reads."""

import re
from typing import NamedTuple

_TAGS = r"(?:\w+:)?(?:think|thinking|thought)"
_OPEN = rf"<{_TAGS}>|\[THINK\]|◁think▷|<\|(?:begin_of_thought|START_THINKING)\|>"
_CLOSE = rf"</{_TAGS}>|\[/THINK\]|◁/think▷|<\|(?:end_of_thought|END_THINKING)\|>"
_MARK = re.compile(f"{_OPEN}|{_CLOSE}")
_THOUGHT = re.compile(rf"(?:{_OPEN})(.*?)(?:{_CLOSE}|\Z)", re.DOTALL)


CHANNEL = "<|channel|>"
"""The token before the name of a channel."""
_MESSAGE = re.compile(
    r"<\|channel\|>(.*?)<\|message\|>(.*?)(?=<\|(?:channel|start|end|return|call)\|>|\Z)", re.DOTALL
)
_REASONING_CHANNELS = ("analysis", "commentary")


class Reply(NamedTuple):
    """The parts of an answer."""

    content: str
    reasoning: str = ""


def is_think_mark(token: str) -> bool:
    """True for a token that begins or ends reasoning, such as <think>."""
    return bool(_MARK.fullmatch(token))


def is_thinking_open(prompt: str) -> bool:
    """True if a prompt ends with a mark that begins reasoning, so that the answer begins with
    reasoning.
    """
    return bool(re.search(rf"(?:{_OPEN})\s*\Z", prompt))


def split_reply(text: str, num_reasoning: int = 0) -> Reply:
    """The parts of an answer, as its marks show them. Without marks, the whole text is content.

    `num_reasoning` is the number of characters at the start that a server sent as reasoning.
    """
    if num_reasoning:
        return Reply(text[num_reasoning:], text[:num_reasoning])
    return split_channels(text) or split_thinking(text) or Reply(text)


def split_thinking(text: str) -> Reply | None:
    """The parts of an answer that begins with reasoning, or None if it does not.

    The first mark is missing if the prompt ends with it, and the last mark is missing if the answer
    was cut. If other text comes before the first opening mark, all marks are ordinary text.
    """
    first = _MARK.search(text)
    if first and re.fullmatch(_CLOSE, first[0]):
        text = f"<think>{text}"
    elif not first or text[: first.start()].strip():
        return None
    thoughts = [thought.strip("\n") for thought in _THOUGHT.findall(text)]
    return Reply(_THOUGHT.sub("", text).lstrip("\n"), "\n".join(thoughts))


def split_channels(text: str) -> Reply | None:
    """The parts of an answer that gpt-oss wrote in channels, or None if the answer has no channels.

    The last message is the content, unless the answer was cut before it. Earlier messages are
    reasoning.
    """
    messages = _MESSAGE.findall(text)
    if not messages:
        return None
    texts = [message for _, message in messages]
    content = "" if messages[-1][0].startswith(_REASONING_CHANNELS) else texts.pop()
    return Reply(content, "\n".join(texts))
