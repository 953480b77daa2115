"""Let the target write the training text: requests that continue its template, and answers.

The text depends only on the seed. It is written in chunks, so that training continues with the
unfinished chunk after its process was killed. The requests of a round are written together, and
then their answers.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import PreTrainedModel

from specbench.errors import UserError, reading
from specbench.log.files import LineFile
from specbench.models.chat import ChatCodec
from specbench.training.examples import reasons
from specbench.training.options import TrainingOptions
from specbench.training.own_requests import OwnText
from specbench.training.sampling import continued

SELF = "self"
"""The value of `--data` with which the target writes the text itself."""

_CHUNK = 480
"""The smallest number of answers in a chunk."""
_ROUND = 96
"""The number of requests in a round."""
_REQUEST = 512
"""The most tokens of a request. Longer requests are dropped."""
_ANSWER = 320
"""The most tokens of an answer. Longer answers are cut."""
_SAMPLED_EVERY = 3
"""One answer in three is sampled. The others are greedy."""
_MOST_ATTEMPTS = 40
"""The most requests per answer of a chunk. If they do not suffice, training fails."""

Say = Callable[[str], None]


class _Frame:
    """A codec, with the tokens that its template writes `before` and `after` a request."""

    def __init__(self, codec: ChatCodec) -> None:
        self.codec = codec
        # Two requests without a common token have prompts whose common beginning and end are the
        # template's.
        first = codec.render([{"role": "user", "content": "x"}])
        second = codec.render([{"role": "user", "content": "7"}])
        self.before = _common_start(first, second)
        num_before = len(self.before)
        first_rest = first[num_before:]
        second_rest = second[num_before:]
        self.after = _common_start(first_rest[::-1], second_rest[::-1])[::-1]
        if not self.before or not self.after:
            raise UserError(
                "--data self needs a chat template, to know where a request begins and ends.",
                "Name one with --template, or give a file of text.",
            )


def check_template(codec: ChatCodec) -> None:
    """Raise UserError for a codec without a chat template."""
    _Frame(codec)


def _common_start(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens with which both begin."""
    pairs = zip(first, second, strict=False)
    common_pairs = takewhile(lambda pair: pair[0] == pair[1], pairs)
    return tuple(token_id for token_id, _ in common_pairs)


def read_openings(path: Path) -> list[str]:
    """Read the beginnings of requests, one per line. A `\\n` in a line stands for a line break.

    Raises:
        CheckpointError: the file cannot be read or is empty.
    """
    with reading(path, "There are no openings", "Give a text file with an opening per line."):
        lines = path.read_text(encoding="utf-8").splitlines()
        openings = [line.replace("\\n", "\n") for line in lines if line.strip()]
        if not openings:
            raise ValueError("it is empty")
    return openings


def write_own_text(
    path: Path,
    model: PreTrainedModel,
    codec: ChatCodec,
    options: TrainingOptions,
    avoided: Iterable[str],
    say: Say,
) -> Counter[str]:
    """Write dialogues until they have `num_tokens` tokens of answers, or continue such a file.

    Requests begin with each of the `openings` in turn, if there are any. A line of the file has
    `request`, `prompt_ids`, `answer_ids`, `stop_reason` (eos or length) and `sampled`. Return how
    many dialogues were left out for each reason.

    Raises:
        UserError: the model writes no usable requests, or another process writes the file.
    """
    frame = _Frame(codec)
    openings = options.openings or [""]
    starts = [[*frame.before, *codec.token_ids(opening)] for opening in openings]
    with closing(LineFile(path)) as file:
        rows = _complete_chunks(file)
        own_text = OwnText(avoided, rows)
        num_tokens = _num_answer_tokens(rows)
        while num_tokens < options.num_tokens:
            left_out_before = own_text.left_out.copy()
            chunk = sum("left_out" in row for row in rows)
            chunk_rows = _chunk(model, frame, own_text, f"{options.seed}/{chunk}", starts)
            chunk_rows[-1]["left_out"] = dict(own_text.left_out - left_out_before)
            file.append("".join(json.dumps(row) + "\n" for row in chunk_rows).encode())
            rows += chunk_rows
            num_tokens += _num_answer_tokens(chunk_rows)
            progress = f"{num_tokens:,} of {options.num_tokens:,} tokens in {len(rows)} answers"
            say(f"Own text: {progress}.")
        return own_text.left_out


def _num_answer_tokens(rows: Iterable[dict[str, Any]]) -> int:
    return sum(len(row["answer_ids"]) for row in rows)


def _chunk(
    model: PreTrainedModel, frame: _Frame, own_text: OwnText, seed: str, starts: list[list[int]]
) -> list[dict[str, Any]]:
    """Write the dialogues of one chunk. Requests begin with each of the token lists in `starts`."""
    rows: list[dict[str, Any]] = []
    for round_number in range(_MOST_ATTEMPTS * _CHUNK // _ROUND):
        first = round_number * _ROUND
        round_starts = [starts[number % len(starts)] for number in range(first, first + _ROUND)]
        rows += _round(model, frame, own_text, f"{seed}/{round_number}", round_starts)
        if len(rows) >= _CHUNK:
            return rows
    raise UserError(
        f"The model writes too few usable requests. Left out: {reasons(own_text.left_out)}.",
        "Train it on a file of text.",
    )


def _round(
    model: PreTrainedModel, frame: _Frame, own_text: OwnText, seed: str, starts: list[list[int]]
) -> Iterator[dict[str, Any]]:
    """Yield a dialogue per start, which begins the request. Some dialogues are left out."""
    draws = torch.Generator(model.device).manual_seed(Random(seed).getrandbits(63))
    decode = frame.codec.tokenizer.decode
    eos_ids = frame.codec.eos_ids
    ends = {frame.after[0], *eos_ids}
    prompts: list[list[int]] = []
    requests: list[str] = []
    continuations = continued(model, starts, _REQUEST + 1, ends, draws)
    for start, (*ids, last_id) in zip(starts, continuations, strict=True):
        request = decode([*start, *ids][len(frame.before) :])
        if last_id not in ends:
            own_text.left_out[f"requests of more than {_REQUEST} tokens"] += 1
        elif own_text.takes(request):
            prompts.append([*start, *ids, *frame.after])
            requests.append(request)
    answers = continued(model, prompts, _ANSWER, eos_ids, draws, _SAMPLED_EVERY)
    for index, answer in enumerate(answers):
        if own_text.overlaps(requests[index], decode(answer)):
            continue
        yield {
            "request": requests[index],
            "prompt_ids": prompts[index],
            "answer_ids": answer,
            "stop_reason": "eos" if answer[-1] in eos_ids else "length",
            "sampled": index % _SAMPLED_EVERY == 0,
        }


def _complete_chunks(file: LineFile) -> list[dict[str, Any]]:
    """Return the rows of the finished chunks, and cut off the rest of the file.

    The last row of a finished chunk has `left_out`.
    """
    lines = file.path.read_bytes().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines]
    chunk_ends = [number for number, row in enumerate(rows, start=1) if "left_out" in row]
    num_complete = max(chunk_ends, default=0)
    file.cut(sum(len(line) for line in lines[:num_complete]))
    return rows[:num_complete]
