"""Training text that the target writes itself: requests after its chat template, and answers.

The text depends on the seed alone. It is written in chunks with equally many requests, so that
a process that was killed goes on with its unfinished chunk. Sequences grow together by one
token a step, each in a slot of one cache.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache

from specbench.data.prompts import load_prompts
from specbench.data.tasks import load_cards
from specbench.engine.kv import FixedLayer, LayerShape, layer_shapes
from specbench.engine.layers.torch_attention import attention_kinds
from specbench.errors import UserError, reading
from specbench.log.files import LineFile
from specbench.models.chat import ChatCodec
from specbench.training.examples import reasons
from specbench.training.recipe import Settings

_ATTENTION = "specbench_slots"


class _Layer(FixedLayer):
    """Keys and values [slots, heads, capacity, head_dim] of one layer."""

    def __init__(self, slots: "Slots", shape: LayerShape, num: int, capacity: int) -> None:
        super().__init__()
        self._slots = slots
        self.keys, self.values = (
            torch.zeros(num, heads, capacity, width, dtype=shape.dtype, device=shape.device)
            for heads, width in (shape.key, shape.value)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        num, _, new, _ = key_states.shape
        positions, end = self._slots.positions, self._slots.end
        if positions is None:  # the prefix, the same in every slot
            self.keys[:, :, :new], self.values[:, :, :new] = key_states, value_states
        else:
            row = torch.arange(num, device=positions.device)
            self.keys[row, :, positions] = key_states[:, :, 0]
            self.values[row, :, positions] = value_states[:, :, 0]
        return self.keys[:num, :, :end], self.values[:num, :, :end]

    def get_seq_length(self) -> int:
        return self._slots.end

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slots.end, 0


class Slots:
    """A cache for `num` sequences of at most `capacity` tokens that begin with the same prefix."""

    @torch.inference_mode()
    def __init__(
        self, model: PreTrainedModel, prefix: Sequence[int], *, num: int, capacity: int
    ) -> None:
        self._model = model
        self.end = len(prefix)
        text = model.config.get_text_config()
        windows = [size for size in attention_kinds(text).values() if size and size < capacity]
        capped = getattr(text, "attn_logit_softcapping", None) or text.model_type == "gpt_oss"
        if windows or capped:
            raise UserError(
                f"--data self does not compute the attention of {text.model_type}: windows, "
                "soft caps or sinks.",
                "Give --data a file with answers of the model.",
            )
        shapes = layer_shapes(model, model.device)
        self._cache = Cache(layers=[_Layer(self, shape, num, capacity) for shape in shapes])
        self._attention = model.config._attn_implementation
        model.set_attn_implementation(_ATTENTION)
        self.positions: Tensor | None = None  # [slots in use] int64, where new tokens are written
        if prefix:
            ids = torch.tensor([prefix], device=model.device)
            mask = torch.full((self.end, self.end), float("-inf"), device=model.device).triu(1)
            self._forward(ids, torch.arange(self.end, device=model.device)[None], mask[None, None])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Logits [n, vocab] after the next token of each of the first n slots."""
        device = self._model.device
        self.positions = at = torch.tensor(positions, device=device)
        self.end = max(positions) + 1
        is_later = torch.arange(self.end, device=device) > at[:, None]
        mask = torch.zeros(is_later.shape, device=device).masked_fill_(is_later, float("-inf"))
        ids = torch.tensor(tokens, device=device)[:, None]
        return self._forward(ids, at[:, None], mask[:, None, None])[:, -1]

    @torch.inference_mode()
    def move(self, source: int, to: int) -> None:
        """Copy a sequence to another slot."""
        for layer in self._cache.layers:
            layer.keys[to], layer.values[to] = layer.keys[source], layer.values[source]

    def close(self) -> None:
        """Give the model its own attention back."""
        self._model.set_attn_implementation(self._attention)

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self._model(
            input_ids=ids, position_ids=positions, attention_mask=mask.to(self._model.dtype),
            past_key_values=self._cache, use_cache=True,
        ).logits  # fmt: skip
        return logits


def _attend(
    _: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **__: object
) -> tuple[Tensor, None]:
    """Attention that does not repeat shared keys."""
    rows, heads, length, width = q.shape
    is_step = length == 1  # the heads that share keys are then the queries of one head
    q = q.reshape(rows, k.shape[1], -1, width) if is_step else q
    mixed = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scaling, enable_gqa=not is_step
    )
    return mixed.reshape(rows, heads, length, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, _attend)


SELF = "self"
"""The value of `--data` that asks for it."""

_CHUNK, _SLOTS = 480, 96
"""Requests of a chunk, and the most that are answered together."""
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


@dataclass(slots=True)
class _Dialogue:
    """A request and its answer while they are written."""

    rng: Random
    ids: list[int]
    forced: list[int]  # tokens of an opening or of the template that come next
    request: str = ""
    num_prompt: int = 0  # 0 while the request is written
    is_sampled: bool = True


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
    with closing(LineFile(path)) as file:
        rows = _complete_chunks(file)
        own = OwnText(avoided, rows)
        count = sum(len(row["answer_ids"]) for row in rows)
        if count >= settings.num_tokens:
            return own.left_out
        capacity = len(frame.before) + _REQUEST + len(frame.after) + _ANSWER + 1
        begun = [codec.token_ids(text) for text in settings.openings or [""]]
        with closing(Slots(model, frame.before[:-1], num=_SLOTS, capacity=capacity)) as slots:
            chunk = len(rows) // _CHUNK
            while count < settings.num_tokens:
                before = own.left_out.copy()
                new = list(_chunk(slots, frame, own, f"{settings.seed}/{chunk}", begun))
                new[-1]["left_out"] = dict(own.left_out - before)
                file.append("".join(json.dumps(row) + "\n" for row in new).encode())
                chunk += 1
                count += sum(len(row["answer_ids"]) for row in new)
                made = f"{count:,} of {settings.num_tokens:,} tokens in {chunk * _CHUNK} answers"
                say(f"Own text: {made}.")
        return own.left_out


def _chunk(
    slots: Slots, frame: _Frame, own: OwnText, seed: str, begun: list[tuple[int, ...]]
) -> Iterator[dict[str, Any]]:
    """The dialogues of one chunk, in the order in which they end."""
    num_made = num_tried = num_accepted = 0
    open_: list[_Dialogue] = []
    while num_made < _CHUNK:
        while len(open_) < min(_SLOTS, _CHUNK - num_made):
            num_tried += 1
            opening = list(begun[num_tried % len(begun)])
            open_.append(_Dialogue(Random(f"{seed}/{num_tried}"), list(frame.before), opening))
        if num_tried > _MOST_ATTEMPTS * _CHUNK:
            raise UserError(
                f"The model writes too few usable requests. Left out: {reasons(own.left_out)}.",
                "Train it on a file of text.",
            )
        logits = slots.step([one.ids[-1] for one in open_], [len(one.ids) - 1 for one in open_])
        ended = []
        for slot, (one, token) in enumerate(zip(open_, _next(logits, open_), strict=True)):
            if one.forced:
                one.ids.append(one.forced.pop(0))
                continue
            if not one.num_prompt:
                is_open = _write_request(one, token, frame, own)
                if one.num_prompt:
                    num_accepted += 1
                    one.is_sampled = num_accepted % _SAMPLED_EVERY == 0
            else:
                one.ids.append(token)
                is_eos = token in frame.codec.eos_ids
                is_open = not is_eos and len(one.ids) - one.num_prompt < _ANSWER
                if not is_open and (row := _row(one, frame, own, is_eos=is_eos)):
                    num_made += 1
                    yield row
            if not is_open:
                ended.append(slot)
        for slot in reversed(ended):
            last = open_.pop()
            if slot < len(open_):
                open_[slot] = last
                slots.move(len(open_), slot)


def _write_request(one: _Dialogue, token: int, frame: _Frame, own: OwnText) -> bool:
    """Add a token to a request, or end it. False if the request is dropped."""
    if token != frame.after[0] and token not in frame.codec.eos_ids:
        one.ids.append(token)
        is_long = len(one.ids) - len(frame.before) > _REQUEST
        own.left_out[f"requests of more than {_REQUEST} tokens"] += is_long
        return not is_long
    one.request = frame.codec.tokenizer.decode(one.ids[len(frame.before) :])
    if not own.takes(one.request):
        return False
    one.forced = list(frame.after)
    one.num_prompt = len(one.ids) + len(frame.after)
    one.ids.append(one.forced.pop(0))
    return True


def _row(one: _Dialogue, frame: _Frame, own: OwnText, *, is_eos: bool) -> dict[str, Any] | None:
    """The line of a dialogue; None if it shares words with a prompt."""
    answer = one.ids[one.num_prompt :]
    if own.overlaps(one.request, frame.codec.tokenizer.decode(answer)):
        return None
    return {
        "request": one.request,
        "prompt_ids": one.ids[: one.num_prompt],
        "answer_ids": answer,
        "stop_reason": "eos" if is_eos else "length",
        "sampled": one.is_sampled,
    }


def _next(logits: Tensor, open_: Sequence[_Dialogue]) -> list[int]:
    """The next token of each dialogue: drawn, or the best one."""
    tokens: list[int] = logits.argmax(-1).tolist()
    drawn = [i for i, one in enumerate(open_) if one.is_sampled and not one.forced]
    if drawn:
        rows = logits[drawn].float()
        top = rows.topk(min(_TOP_K, rows.shape[-1]))
        shares = (top.values - rows.logsumexp(-1, keepdim=True)).exp()
        shares = shares.where(shares.cumsum(-1) - shares < _TOP_P, 0.0)
        numbers = torch.tensor([open_[i].rng.random() for i in drawn], device=rows.device)
        at = torch.searchsorted(shares.cumsum(-1), (numbers * shares.sum(-1))[:, None])
        ids = top.indices.gather(1, at.clamp_(max=shares.shape[-1] - 1))[:, 0].tolist()
        for i, token in zip(drawn, ids, strict=True):
            tokens[i] = token
    return tokens


def _complete_chunks(file: LineFile) -> list[dict[str, Any]]:
    """The rows of the chunks that were finished. What follows them is cut off."""
    lines = file.path.read_bytes().splitlines(keepends=True)
    whole = lines[: len(lines) // _CHUNK * _CHUNK]
    file.cut(sum(map(len, whole)))
    return [json.loads(line) for line in whole]


def _common(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The longest common beginning."""
    pairs = zip(one, other, strict=False)
    return tuple(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
