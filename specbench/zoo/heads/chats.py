"""Training text from a file: chats with answers, or plain text, one JSON object a line.

Knows the file and how a model's codec writes a chat. Every mistake in the file is reported with
file, line and reason.
"""

import functools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from specbench.errors import UserError
from specbench.zoo.batches import Batch

_HINT = (
    'A line is {"turns": ["request"], "reference": ["answer"]}, an answer for each turn, or '
    '{"text": "plain text"}. The file must be UTF-8.'
)


class Codec(Protocol):
    """How text is written for the model: that of a run, so that training sees what runs see."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def render(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """A prompt's token ids, ready for an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Example:
    """A line of the file. Plain text is an example without a request."""

    turns: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens of an example, and what each weighs in the loss of guessing it."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RowBatches:
    """The endless sequence of batches: every row once an epoch, in a seeded order."""

    rows: Sequence[Row]
    seed: int
    num_rows: int
    pad_id: int

    def __getitem__(self, index: int) -> Batch:
        chosen = []
        for place in range(index * self.num_rows, (index + 1) * self.num_rows):
            epoch, at = divmod(place, len(self.rows))
            chosen.append(self.rows[_order(self.seed, epoch, len(self.rows))[at]])
        return stack(chosen, self.pad_id)


def stack(rows: Sequence[Row], pad_id: int) -> Batch:
    """Rows as one batch, padded behind their ends."""
    length = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), length), pad_id)
    weights = torch.zeros(len(rows), length)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        weights[i, : len(row.ids)] = torch.tensor(row.weights)
    return Batch(ids, weights, sum(len(row.ids) for row in rows))


def read_examples(path: Path) -> list[Example]:
    """All examples of a file.

    Raises:
        UserError: the file is missing, unreadable or empty, or a line of it is broken.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"--data {path} cannot be read: {error.strerror}."
        raise UserError(message, "Give a JSONL file of chats or text.") from error
    examples = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                examples.append(_example(json.loads(line.decode("utf-8"))))
            except (ValueError, RecursionError) as error:
                raise UserError(f"--data {path}, line {number}: {error}.", _HINT) from error
    if not examples:
        raise UserError(f"--data {path} is empty.", _HINT)
    return examples


def encode(
    codec: Codec, examples: Sequence[Example], length: int, request_weight: float
) -> Iterator[Row]:
    """The rows of the examples, cut at `length` tokens; those too short to guess in are left out.

    An answer's tokens weigh 1, a request's `request_weight`, all of a plain text's 1.
    """
    for example in examples:
        row = _chat(codec, example, request_weight) if example.turns else _text(codec, example)
        if len(row.ids) > 2:
            yield Row(row.ids[:length], row.weights[:length])


def _chat(codec: Codec, example: Example, request_weight: float) -> Row:
    messages: list[dict[str, str]] = []
    ids: tuple[int, ...] = ()
    weights: list[float] = []
    for turn, answer in zip(example.turns, example.answers, strict=True):
        messages.append({"role": "user", "content": turn})
        prompt = codec.render(messages)
        messages.append({"role": "assistant", "content": answer})
        if prompt[: len(ids)] != ids:  # a template that rewrites the turns before
            weights = [request_weight] * len(prompt)
        weights += [request_weight] * (len(prompt) - len(weights))
        ids = (*prompt, *_answer_ids(codec, messages, prompt))
        weights += [1.0] * (len(ids) - len(prompt))
    return Row(ids, (0.0, *weights[1:]))


def _answer_ids(
    codec: Codec, messages: list[dict[str, str]], prompt: tuple[int, ...]
) -> tuple[int, ...]:
    """The last answer as the model would give it behind `prompt`, with the token that ends it.

    A template tells that token by what it writes between the answer and a next request.
    """
    answer = tuple(codec.tokenizer(messages[-1]["content"], add_special_tokens=False)["input_ids"])
    following = codec.render([*messages, {"role": "user", "content": "?"}])[len(prompt) :]
    end = following[len(answer) : len(answer) + 1]
    if following[: len(answer)] == answer and end and end[0] in codec.eos_ids:
        return (*answer, *end)
    eos = codec.tokenizer.eos_token_id
    return answer if eos is None else (*answer, eos)


def _text(codec: Codec, example: Example) -> Row:
    ids = tuple(codec.tokenizer(example.answers[0])["input_ids"])
    return Row(ids, (0.0, *[1.0] * (len(ids) - 1)))


def _example(row: object) -> Example:
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, not {type(row).__name__}")
    if "text" in row:
        if not isinstance(row["text"], str) or not row["text"].strip():
            raise ValueError("`text` is not a string with something in it")
        return Example((), (row["text"],))
    for name in ("turns", "reference"):
        value = row.get(name)
        if not isinstance(value, list) or not value:
            raise ValueError(f"`{name}` is missing, or no list of strings")
        if not all(isinstance(text, str) and text.strip() for text in value):
            raise ValueError(f"`{name}` holds something that is empty or no string")
    if len(row["turns"]) != len(row["reference"]):
        raise ValueError(f"{len(row['turns'])} turns, but {len(row['reference'])} answers")
    return Example(tuple(row["turns"]), tuple(row["reference"]))


@functools.lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> Sequence[int]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
