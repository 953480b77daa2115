"""Training text that the target writes itself: requests after its chat template, and answers.

The text depends on the seed alone. It is written in chunks, so that a process that was killed
goes on with its unfinished chunk. A round of requests is written together, then their answers.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from specbench.data.prompts import load_prompts
from specbench.data.tasks import load_cards
from specbench.errors import UserError, reading
from specbench.log.files import LineFile
from specbench.models.chat import ChatCodec
from specbench.training.examples import reasons
from specbench.training.recipe import Settings

SELF = "self"
"""The value of `--data` that asks for it."""

_CHUNK, _ROUND = 480, 96
"""Least answers of a chunk, and requests of a round."""
_REQUEST, _ANSWER = 512, 320
"""Most tokens of a request and an answer. Longer requests are dropped, longer answers cut."""
_SAMPLED_EVERY = 3
"""One answer in three is sampled, the others are greedy."""
_TOP_P, _TOP_K = 0.95, 256
_OPENING, _OPENING_SHARE, _FREE = 3, 0.05, 2
"""Words of an opening, and the largest share and number of requests that may share one."""
OVERLAP = 13
"""A request or answer may not share this many words in a row with a prompt of a task."""
_MOST_ATTEMPTS = 40
"""Rounds that each write as many requests as a chunk has answers, after which it is given up."""

_WORD = re.compile(r"\w+")
Say = Callable[[str], None]


def task_prompts() -> tuple[list[str], list[str]]:
    """The prompts of all tasks, bundled or in the cache, and the sources that are not there."""
    texts: list[str] = []
    unchecked = []
    for card in load_cards().values():
        for source in card.sources:
            try:
                prompts = load_prompts(card.name, source, offline=True)
                texts += (turn for prompt in prompts for turn in prompt.turns)
            except UserError:
                unchecked.append(f"{card.name} ({source})")
    return texts, unchecked


def word_runs(text: str) -> Iterator[tuple[str, ...]]:
    """Every run of `OVERLAP` words of a text, in lower case."""
    words = _WORD.findall(text.lower())
    return zip(*(words[i:] for i in range(OVERLAP)), strict=False)


class OwnText:
    """The requests so far, and the rules that a new one has to keep."""

    def __init__(self, avoided: Iterable[str], rows: Iterable[dict[str, Any]] = ()) -> None:
        """`avoided` are the prompts of tasks; `rows` what was written before."""
        self._avoided = {run for text in avoided for run in word_runs(text)}
        self._seen: set[str] = set()
        self._openings: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        for row in rows:
            self._count(row["request"])
            self.left_out.update(row.get("left_out", {}))

    def takes(self, request: str) -> bool:
        """True for a request that is kept, which is then counted."""
        words = _WORD.findall(request.lower())
        share = _OPENING_SHARE * (len(self._seen) + 1)
        reason = None
        if len(words) < _OPENING:
            reason = f"requests of fewer than {_OPENING} words"
        elif " ".join(words) in self._seen:
            reason = "requests made before"
        elif self._openings[" ".join(words[:_OPENING])] + 1 > max(share, _FREE):
            reason = "requests with a frequent opening"
        if reason:
            self.left_out[reason] += 1
        else:
            self._count(request)
        return reason is None

    def overlaps(self, request: str, answer: str) -> bool:
        """True if one shares a run of words with a prompt of a task. The request is forgotten."""
        is_shared = any(run in self._avoided for t in (request, answer) for run in word_runs(t))
        if is_shared:
            self.left_out[f"dialogues that share {OVERLAP} words with a prompt"] += 1
            self._count(request, -1)
        return is_shared

    def _count(self, request: str, by: int = 1) -> None:
        words = _WORD.findall(request.lower())
        (self._seen.add if by > 0 else self._seen.discard)(" ".join(words))
        self._openings[" ".join(words[:_OPENING])] += by


class _Frame:
    """A codec, and the tokens of its template `before` and `after` a request."""

    def __init__(self, codec: ChatCodec) -> None:
        self.codec = codec
        one, other = (codec.render([{"role": "user", "content": text}]) for text in ("x", "7"))
        self.before = before = _common(one, other)
        self.after = _common(one[: len(before) - 1 : -1], other[: len(before) - 1 : -1])[::-1]
        if not before or not self.after:
            raise UserError(
                "--data self needs a chat template, to know where a request begins and ends.",
                "Name one by --template, or give a file of text.",
            )


def read_openings(path: Path) -> list[str]:
    """The beginnings of requests in a file, one a line; a `\\n` in it stands for a new line.

    Raises:
        CheckpointError: it cannot be read or is empty.
    """
    with reading(path, "There are no openings", "Give a text file with an opening a line."):
        lines = path.read_text(encoding="utf-8").splitlines()
        if not (openings := [line.replace("\\n", "\n") for line in lines if line.strip()]):
            raise ValueError("it is empty")
    return openings


def write_own_text(
    path: Path,
    model: PreTrainedModel,
    codec: ChatCodec,
    settings: Settings,
    avoided: Iterable[str],
    say: Say,
) -> Counter[str]:
    """Write dialogues until there are `num_tokens` tokens of answers, or go on with a file.

    Requests begin with the `openings` in turn, if there are any. A line of the file has
    `request`, `prompt_ids`, `answer_ids`, `stop_reason` (eos or length) and `sampled`. Returns
    what was left out, by reason.

    Raises:
        UserError: the model writes no usable requests, or another process writes the file.
    """
    frame = _Frame(codec)
    begun = [[*frame.before, *codec.token_ids(text)] for text in settings.openings or [""]]
    with closing(LineFile(path)) as file:
        rows = _complete_chunks(file)
        own = OwnText(avoided, rows)
        count = sum(len(row["answer_ids"]) for row in rows)
        while count < settings.num_tokens:
            before = own.left_out.copy()
            chunk = sum("left_out" in row for row in rows)
            new = _chunk(model, frame, own, f"{settings.seed}/{chunk}", begun)
            new[-1]["left_out"] = dict(own.left_out - before)
            file.append("".join(json.dumps(row) + "\n" for row in new).encode())
            rows += new
            count += sum(len(row["answer_ids"]) for row in new)
            made = f"{count:,} of {settings.num_tokens:,} tokens in {len(rows)} answers"
            say(f"Own text: {made}.")
        return own.left_out


def _chunk(
    model: PreTrainedModel, frame: _Frame, own: OwnText, seed: str, begun: list[list[int]]
) -> list[dict[str, Any]]:
    """The dialogues of one chunk, in the order of their requests."""
    rows: list[dict[str, Any]] = []
    for number in range(_MOST_ATTEMPTS * _CHUNK // _ROUND):
        starts = [begun[(number * _ROUND + i) % len(begun)] for i in range(_ROUND)]
        rows += _round(model, frame, own, f"{seed}/{number}", starts)
        if len(rows) >= _CHUNK:
            return rows
    raise UserError(
        f"The model writes too few usable requests. Left out: {reasons(own.left_out)}.",
        "Train it on a file of text.",
    )


def _round(
    model: PreTrainedModel, frame: _Frame, own: OwnText, seed: str, starts: list[list[int]]
) -> Iterator[dict[str, Any]]:
    """The dialogues whose requests begin with these tokens, without those that are left out."""
    draws = torch.Generator(model.device).manual_seed(Random(seed).getrandbits(63))
    decode, eos_ids = frame.codec.tokenizer.decode, frame.codec.eos_ids
    ends = {frame.after[0], *eos_ids}
    prompts: list[list[int]] = []
    requests: list[str] = []
    made = continued(model, starts, _REQUEST + 1, ends, draws)
    for start, (*ids, last) in zip(starts, made, strict=True):
        request = decode([*start, *ids][len(frame.before) :])
        if last not in ends:
            own.left_out[f"requests of more than {_REQUEST} tokens"] += 1
        elif own.takes(request):
            prompts.append([*start, *ids, *frame.after])
            requests.append(request)
    answers = continued(model, prompts, _ANSWER, eos_ids, draws, _SAMPLED_EVERY)
    for i, answer in enumerate(answers):
        if not own.overlaps(requests[i], decode(answer)):
            yield {
                "request": requests[i],
                "prompt_ids": prompts[i],
                "answer_ids": answer,
                "stop_reason": "eos" if answer[-1] in eos_ids else "length",
                "sampled": i % _SAMPLED_EVERY == 0,
            }


@torch.inference_mode()
def continued(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    most: int,
    ends: Set[int],
    draws: torch.Generator,
    sampled_every: int = 1,
) -> list[list[int]]:
    """The continuation of each prompt, until a token in `ends` or for `most` tokens.

    One row in `sampled_every`, the first among them, is drawn with `draws`. The others are greedy.
    """
    width = max(map(len, prompts), default=0)
    padded = [[0] * (width - len(one)) + one for one in prompts]
    are_tokens = [[0] * (width - len(one)) + [1] * len(one) for one in prompts]
    ids, mask = (torch.tensor(rows, device=model.device) for rows in (padded, are_tokens))
    is_sampled = torch.arange(len(prompts), device=model.device) % sampled_every == 0
    made: list[list[int]] = [[] for _ in prompts]
    open_, cache = [*range(len(prompts))], None
    while open_:
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
        out = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        next_ids = _next(out.logits[:, -1], is_sampled[open_], draws)
        for i, token in zip(open_, next_ids.tolist(), strict=True):
            made[i].append(token)
        kept = [at for at, i in enumerate(open_) if made[i][-1] not in ends and len(made[i]) < most]
        if 0 < len(kept) < len(open_):
            out.past_key_values.batch_select_indices(torch.tensor(kept, device=model.device))
        open_, cache = [open_[at] for at in kept], out.past_key_values
        ids, mask = next_ids[kept, None], pad(mask[kept], (0, 1), value=1)
    return made


def _next(logits: Tensor, is_sampled: Tensor, draws: torch.Generator) -> Tensor:
    """The next token of each row: drawn, or the best one. [rows] int64"""
    top = logits.float().topk(min(_TOP_K, logits.shape[-1]))
    shares = (top.values - logits.float().logsumexp(-1, keepdim=True)).exp()
    sums = shares.where(shares.cumsum(-1) - shares < _TOP_P, 0.0).cumsum(-1)
    numbers = torch.rand(len(sums), 1, generator=draws, device=sums.device) * sums[:, -1:]
    at = torch.searchsorted(sums, numbers * is_sampled[:, None])
    return top.indices.gather(1, at.clamp_(max=sums.shape[1] - 1))[:, 0]


def _complete_chunks(file: LineFile) -> list[dict[str, Any]]:
    """The rows of the chunks that were finished, whose last row has `left_out`.

    What follows them is cut off.
    """
    lines = file.path.read_bytes().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines]
    num = max((i for i, row in enumerate(rows, start=1) if "left_out" in row), default=0)
    file.cut(sum(map(len, lines[:num])))
    return rows[:num]


def _common(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The longest common beginning."""
    pairs = zip(one, other, strict=False)
    return tuple(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
