"""Training text from a file: chats with answers, or plain text, as lines or as one JSON array.

Chats have the layouts of public data sets: lists of `messages`, or ShareGPT's `conversations`.

Chats that cannot be trained on are left out and counted by reason; a row in an unknown layout
is an error.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UserError, os_errors
from specbench.models.chat import ChatCodec
from specbench.training.batches import Row

LISTS = ("messages", "conversations")
_ROLES = {
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant",
    "system": "system",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """One entry of a file of training text. Plain text is an answer without a turn.

    Text that a target wrote itself is kept as tokens `ids`; the first `num_prompt` are the
    request.
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
    texts: list[str] = []  # requests and answers in turn
    for role, text in _messages(row):
        if role not in _ROLES.values():
            left_out[f"chats with a message of role {role!r}"] += 1
            return None
        if role == "system":
            left_out["system messages"] += 1
        elif not texts and role == "assistant":
            left_out["answers before the first request"] += 1
        elif not text.strip():
            left_out["ends of chats from an empty message on"] += 1
            break
        elif role != ("user", "assistant")[len(texts) % 2]:
            left_out["chats whose messages do not alternate"] += 1
            return None
        else:
            texts.append(text)
    answers = texts[1::2]
    if not answers:
        left_out["chats without an answer"] += 1
        return None
    left_out["last requests without an answer"] += len(texts) % 2
    return Example(tuple(texts[::2][: len(answers)]), tuple(answers))


def reasons(left_out: Counter[str]) -> str:
    """The reasons for leaving examples out, each with a count, in one line."""
    return "; ".join(f"{why} ({num})" for why, num in left_out.most_common() if num)


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
        if isinstance(text, list):  # parts; a chat of text has one
            text = "".join(part.get("text", "") for part in text if isinstance(part, dict))
        if not isinstance(role, str):
            raise ValueError(f"a message of `{name}` has no role")
        yield _ROLES.get(role.lower(), role), text if isinstance(text, str) else ""


_HINT = (
    'An entry is {"turns": ["request"], "reference": ["answer"]}, an answer for each turn, '
    '{"messages": [...]}, ShareGPT\'s {"conversations": [...]}, or {"text": "plain text"}. '
    "The file must be UTF-8."
)


def read_examples(path: Path, left_out: Counter[str]) -> list[Example]:
    """The examples of a file. What is left out of it is counted by reason.

    Raises:
        UserError: the file is missing, unreadable or empty, or an entry of it is broken; then the
            message has its number and the reason.
    """
    with os_errors(f"--data {path} cannot be read", "Give a JSONL file of chats or text."):
        data = path.read_bytes()
    examples, place = [], ""
    try:
        for found in _entries(data.removeprefix(b"\xef\xbb\xbf")):
            place, entry = found
            row = json.loads(entry.decode("utf-8")) if isinstance(entry, bytes) else entry
            if example := _example(row, left_out):
                examples.append(example)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--data {path}{place}: {error}.", _HINT) from error
    if not place:
        raise UserError(f"--data {path} is empty.", _HINT)
    return examples


def _entries(data: bytes) -> Iterator[tuple[str, object]]:
    """The place of each entry, and its line or, in a JSON array, its value."""
    if data.lstrip().startswith(b"["):
        for number, value in enumerate(json.loads(data.decode("utf-8")), start=1):
            yield f", entry {number}", value
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield f", line {number}", line


def encode(
    codec: ChatCodec,
    examples: Sequence[Example],
    length: int,
    request_weight: float,
    left_out: Counter[str],
) -> Iterator[Row]:
    """The rows of the examples, cut at `length` tokens; rows of fewer than three are left out.

    Tokens of an answer or of plain text have weight 1, tokens of a request `request_weight`.
    """
    for example in examples:
        row = (_chat if example.turns else _plain)(codec, example, request_weight)
        if len(row.ids) <= 2:
            left_out["examples of fewer than three tokens"] += 1
            continue
        if len(row.ids) > length:
            left_out[f"ends of examples longer than {length} tokens"] += 1
        yield Row(row.ids[:length], row.weights[:length])


def _chat(codec: ChatCodec, example: Example, request_weight: float) -> Row:
    messages: list[dict[str, str]] = []
    ids: tuple[int, ...] = ()
    weights: list[float] = []
    for turn, answer in zip(example.turns, example.answers, strict=True):
        messages.append({"role": "user", "content": turn})
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
    """The last answer as the model would give it after `prompt`, with the token that ends it.

    That token is what the template writes between the answer and a next request.
    """
    answer = codec.token_ids(messages[-1]["content"])
    following = codec.render([*messages, {"role": "user", "content": "?"}])[len(prompt) :]
    end = following[len(answer) : len(answer) + 1]
    if following[: len(answer)] == answer and end and end[0] in codec.eos_ids:
        return (*answer, *end)
    eos = codec.tokenizer.eos_token_id
    return answer if eos is None else (*answer, eos)


def _plain(codec: ChatCodec, example: Example, request_weight: float) -> Row:
    """The row of plain text, or of the target's own tokens, whose cut answers have no end token."""
    if (largest := max(example.ids, default=0)) >= len(codec.tokenizer):
        message = f"--data has the token {largest}, which the model does not have."
        raise UserError(message, "Train on text that this model wrote.")
    ids = example.ids or tuple(codec.tokenizer(example.answers[0])["input_ids"])
    num_request = max(example.num_prompt - 1, 0)
    return Row(ids, [0.0, *[request_weight] * num_request, *[1.0] * (len(ids) - num_request - 1)])


def _example(row: object, left_out: Counter[str]) -> Example | None:
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, not {type(row).__name__}")
    if any(name in row for name in LISTS):
        return read_chat(row, left_out)
    if "answer_ids" in row:
        parts = [row.get("prompt_ids"), row["answer_ids"]]
        if not all(isinstance(ids, list) and ids and all(map(_is_token, ids)) for ids in parts):
            raise ValueError("`prompt_ids` and `answer_ids` are not lists of tokens")
        return Example((), (), tuple(parts[0] + parts[1]), len(parts[0]))
    if "text" in row:
        if not isinstance(row["text"], str) or not row["text"].strip():
            raise ValueError("`text` is not a string with something in it")
        return Example((), (row["text"],))
    for name in ("turns", "reference"):
        value = row.get(name)
        if not isinstance(value, list) or not value:
            raise ValueError(f"`{name}` is missing, or is not a list of strings")
        if not all(isinstance(text, str) and text.strip() for text in value):
            raise ValueError(f"`{name}` holds something that is empty or not a string")
    if len(row["turns"]) != len(row["reference"]):
        raise ValueError(f"{len(row['turns'])} turns, but {len(row['reference'])} answers")
    return Example(tuple(row["turns"]), tuple(row["reference"]))


def _is_token(value: object) -> bool:
    return type(value) is int and value >= 0
