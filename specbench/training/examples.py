"""Read training text from a file: chats with answers or plain text, as lines or one JSON array.

Chats have the layouts of public data sets: lists of `messages`, or ShareGPT's `conversations`.

Chats that cannot be used for training are left out and counted by reason. A row in an unknown
layout is an error.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from specbench.errors import UserError, os_errors
from specbench.models.chat import ChatCodec
from specbench.training.batches import Row

LISTS = ("messages", "conversations")
_ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "system": "system",
}
"""The role of a message for each name that data sets give it."""
_TURNS = ("user", "assistant")
"""The roles that alternate in a chat."""


class Message(NamedTuple):
    """A message of a chat."""

    role: str
    text: str


class Entry(NamedTuple):
    """An entry of a file."""

    place: str
    """The entry's position in the file, for messages, such as ", line 3"."""

    content: object
    """The entry's line as bytes, or its value in a JSON array."""


@dataclass(frozen=True, slots=True)
class Example:
    """One entry of a file of training text. Plain text is an answer without a request."""

    turns: tuple[str, ...]
    answers: tuple[str, ...]

    ids: tuple[int, ...] = ()
    """The tokens of a dialogue that a target wrote itself."""

    num_prompt: int = 0
    """Number of the first `ids` that belong to the request."""


def read_chat(row: dict[str, Any], left_out: Counter[str]) -> Example | None:
    """Return the requests and answers of a chat, or None if it has to be left out.

    Raises:
        ValueError: the chat is not a list of messages.
    """
    turns: list[str] = []  # requests and answers in turn
    for role, text in _messages(row):
        if role not in _ROLES.values():
            left_out[f"chats with a message of role {role!r}"] += 1
            return None
        if role == "system":
            left_out["system messages"] += 1
        elif not turns and role == "assistant":
            left_out["answers before the first request"] += 1
        elif not text.strip():
            left_out["ends of chats that begin with an empty message"] += 1
            break
        elif role != _TURNS[len(turns) % 2]:
            left_out["chats whose messages do not alternate"] += 1
            return None
        else:
            turns.append(text)
    answers = turns[1::2]
    if not answers:
        left_out["chats without an answer"] += 1
        return None
    requests = turns[::2]
    left_out["last requests without an answer"] += len(requests) - len(answers)
    return Example(tuple(requests[: len(answers)]), tuple(answers))


def reasons(left_out: Counter[str]) -> str:
    """Return one line with the reasons for leaving out examples, and their counts."""
    counted = [f"{reason} ({num})" for reason, num in left_out.most_common() if num]
    return "; ".join(counted)


def _messages(row: dict[str, Any]) -> Iterator[Message]:
    """Yield the role and the text of each message."""
    name = next(name for name in LISTS if name in row)
    if not isinstance(row[name], list):
        raise ValueError(f"`{name}` is not a list")
    for message in row[name]:
        if not isinstance(message, dict):
            raise ValueError(f"`{name}` holds something that is not a message")
        role = message.get("role", message.get("from"))
        if not isinstance(role, str):
            raise ValueError(f"a message of `{name}` has no role")
        content = message.get("content", message.get("value"))
        yield Message(_ROLES.get(role.lower(), role), _text_of(content))


def _text_of(content: object) -> str:
    """Return the text of a message. If it is a list of parts, their texts are joined."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


_HINT = (
    'An entry is {"turns": ["request"], "reference": ["answer"]}, an answer for each turn, '
    '{"messages": [...]}, ShareGPT\'s {"conversations": [...]}, or {"text": "plain text"}. '
    "The file must be UTF-8."
)


def read_examples(path: Path, left_out: Counter[str]) -> list[Example]:
    """Read the examples of a file. `left_out` counts the omitted entries per reason.

    Raises:
        UserError: the file is missing, unreadable or empty, or an entry of it is broken. Then the
            message has the entry's number and the reason.
    """
    with os_errors(f"--data {path} cannot be read", "Give a JSONL file of chats or text."):
        data = path.read_bytes()
    examples = []
    place = ""
    try:
        for entry in _entries(data.removeprefix(b"\xef\xbb\xbf")):
            place = entry.place
            row = entry.content
            if isinstance(row, bytes):
                row = json.loads(row.decode("utf-8"))
            example = _example(row, left_out)
            if example:
                examples.append(example)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--data {path}{place}: {error}.", _HINT) from error
    if not place:
        raise UserError(f"--data {path} is empty.", _HINT)
    return examples


def _entries(data: bytes) -> Iterator[Entry]:
    """Yield the entries of a JSON array, or of a file with one entry per line."""
    if data.lstrip().startswith(b"["):
        for number, row in enumerate(json.loads(data.decode("utf-8")), start=1):
            yield Entry(f", entry {number}", row)
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield Entry(f", line {number}", line)


def encode(
    codec: ChatCodec,
    examples: Sequence[Example],
    length: int,
    request_weight: float,
    left_out: Counter[str],
) -> Iterator[Row]:
    """Yield rows of the examples, cut at `length` tokens, without rows of fewer than three.

    Tokens of answers and of plain text have the weight 1, and those of requests have
    `request_weight`.
    """
    for example in examples:
        to_row = _chat_row if example.turns else _plain_row
        row = to_row(codec, example, request_weight)
        if len(row.ids) <= 2:
            left_out["examples of fewer than three tokens"] += 1
            continue
        if len(row.ids) > length:
            left_out[f"ends of examples longer than {length} tokens"] += 1
        yield Row(row.ids[:length], row.weights[:length])


def _chat_row(codec: ChatCodec, example: Example, request_weight: float) -> Row:
    """Return the row of a chat as the template writes it."""
    messages: list[dict[str, str]] = []
    ids: tuple[int, ...] = ()
    weights: list[float] = []
    for request, answer in zip(example.turns, example.answers, strict=True):
        messages.append({"role": "user", "content": request})
        prompt = codec.render(messages)
        messages.append({"role": "assistant", "content": answer})
        num_same = len(ids) if prompt[: len(ids)] == ids else 0  # a template may rewrite turns
        weights[num_same:] = [request_weight] * (len(prompt) - num_same)
        ids = (*prompt, *_answer_ids(codec, messages, prompt))
        weights += [1.0] * (len(ids) - len(prompt))
    return Row(ids, (0.0, *weights[1:]))


def _answer_ids(
    codec: ChatCodec, messages: list[dict[str, str]], prompt: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the last answer as the model would give it after `prompt`, with its end token.

    The end token is the one that the template writes between an answer and another request. If the
    template writes none, it is the tokenizer's EOS, if the tokenizer has one.
    """
    answer = codec.token_ids(messages[-1]["content"])
    following = codec.render([*messages, {"role": "user", "content": "?"}])[len(prompt) :]
    end = following[len(answer) : len(answer) + 1]
    if following[: len(answer)] == answer and end and end[0] in codec.eos_ids:
        return (*answer, *end)
    eos_id = codec.tokenizer.eos_token_id
    return answer if eos_id is None else (*answer, eos_id)


def _plain_row(codec: ChatCodec, example: Example, request_weight: float) -> Row:
    """Return the row of plain text, or of tokens that the target wrote.

    An answer that the target did not finish has no end token.
    """
    largest = max(example.ids, default=0)
    if largest >= len(codec.tokenizer):
        message = f"--data has the token {largest}, which the model does not have."
        raise UserError(message, "Train on text that this model wrote.")
    ids = example.ids or tuple(codec.tokenizer(example.answers[0])["input_ids"])
    num_request = max(example.num_prompt - 1, 0)  # the first token has no weight
    num_answer = len(ids) - num_request - 1
    return Row(ids, [0.0, *[request_weight] * num_request, *[1.0] * num_answer])


def _example(row: object, left_out: Counter[str]) -> Example | None:
    """Return the example in an entry, or None if it has to be left out.

    Raises:
        ValueError: the entry has no known layout.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, not {type(row).__name__}")
    if any(name in row for name in LISTS):
        return read_chat(row, left_out)
    if "answer_ids" in row:
        prompt_ids = row.get("prompt_ids")
        answer_ids = row["answer_ids"]
        if not _are_tokens(prompt_ids) or not _are_tokens(answer_ids):
            raise ValueError("`prompt_ids` and `answer_ids` are not lists of tokens")
        return Example((), (), tuple(prompt_ids + answer_ids), len(prompt_ids))
    if "text" in row:
        if not isinstance(row["text"], str) or not row["text"].strip():
            raise ValueError("`text` is empty or not a string")
        return Example((), (row["text"],))
    for name in ("turns", "reference"):
        strings = row.get(name)
        if not isinstance(strings, list) or not strings:
            raise ValueError(f"`{name}` is missing, or is not a list of strings")
        if not all(isinstance(string, str) and string.strip() for string in strings):
            raise ValueError(f"`{name}` holds something that is empty or not a string")
    if len(row["turns"]) != len(row["reference"]):
        raise ValueError(f"{len(row['turns'])} turns, but {len(row['reference'])} answers")
    return Example(tuple(row["turns"]), tuple(row["reference"]))


def _are_tokens(ids: object) -> TypeGuard[list[int]]:
    """Return True for a list of token ids that is not empty."""
    return (
        isinstance(ids, list)
        and bool(ids)
        and all(type(token) is int and token >= 0 for token in ids)
    )
