"""A request to a server, and the events of its answer put together, each with its time of arrival.

A `StreamProtocol` turns requests and events into JSON and back: the OpenAI API's are here, an
engine's own are in its file in `engines`. Shapes as served by vLLM 0.32.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from specbench.errors import SpecbenchError, cut, printable
from specbench.measure.server.address import without_key
from specbench.models.chat import Message
from specbench.types import Request

MOST_LINE, MOST_BYTES = 16 * 2**20, 2**30
"""Most bytes of one event, and of an answer: more than any answer needs."""
_LONGEST_TOKEN = 256
"""Characters of a token."""
_SHOWN = 120
_ENDS = {"stop": "eos", "eos": "eos", "length": "budget", "limit": "budget"}
"""The servers' words for the end of an answer."""
_MOST_SEED = 2**31
"""Servers take seeds of 32 bits or more."""
_UNFILTERED = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Without them, vLLM and SGLang sample as the model's generation_config.json says."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request with the chat that its prompt tokens render, for servers that take no tokens."""

    request: Request
    messages: Sequence[Message]


class Counts(Struct, frozen=True):
    """Counts that a server reports for one answer; `accepted_per_step` has drafted steps only.

    `num_drafted` counts draft tokens, `num_drafts` steps with drafts.
    """

    num_drafts: int | None = None
    num_drafted: int | None = None
    num_accepted: int | None = None
    accepted_per_step: tuple[int, ...] | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None


class Event(Struct, frozen=True, gc=False):
    """One event of a stream: new text, new tokens, and at its end the reason and the counts.

    `finish` is the server's own word for the end. `is_whole` marks an event whose text
    includes that of all earlier ones; so do its token ids if there are `num_so_far` of them.
    """

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish: str | None = None
    num_tokens: int | None = None
    prompt_tokens: int | None = None
    counts: Counts | None = None
    error: str | None = None
    is_whole: bool = False
    num_so_far: int | None = None


@dataclass(frozen=True, slots=True)
class StreamProtocol:
    """A form of requests and answers. `path` is below the server's root.

    `body` makes the JSON of a request to a model. `read` makes the event of one `data:` line,
    and raises ValueError if it has another form. `keeps_connections` is False for servers that
    drop connections which they said they would keep.
    """

    name: str
    path: str
    body: Callable[[str, ChatRequest], dict[str, Any]]
    read: Callable[[bytes], Event]
    takes_tokens: bool = True
    keeps_connections: bool = True


class RequestFailed(SpecbenchError):
    """A request that gave no answer. The key is removed from the reason.

    `is_refused` if the server did not begin it, `wants_key` if it asks for one.
    `retry_after_s` is the wait that the server asks for.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_refused: bool = False,
        wants_key: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(without_key(reason))
        self.is_refused, self.wants_key = is_refused, wants_key
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Times are of `perf_counter`, in seconds.

    `arrivals` are the times at which text, tokens or the end token arrived [arrivals]; tokens
    that arrive together are one arrival. `token_ids` is None if the server sends text only.
    """

    text: str
    token_ids: tuple[int, ...] | None
    stop: str
    num_tokens: int | None
    prompt_tokens: int | None
    counts: Counts
    sent: float
    arrivals: tuple[float, ...]
    num_retries: int = 0


class AnswerReader(Struct):
    """Reads the bytes of a stream of server-sent events, in pieces as they arrive.

    `budget` is the number of tokens asked for: a server that goes on far beyond it fails.
    """

    protocol: StreamProtocol
    sent: float
    budget: int
    num_events: int = 0
    _rest: bytes = b""
    _num_bytes: int = 0
    _texts: list[str] = []
    _ids: list[int] | None = None
    _num_characters: int = 0
    _arrivals: list[float] = []
    _counts: Counts = Counts()
    _stop: str | None = None
    _num_tokens: int | None = None
    _prompt_tokens: int | None = None

    def feed(self, piece: bytes, now: float) -> None:
        """Read what arrived at the time `now`.

        Raises:
            RequestFailed: an error event, or something else than an event of the protocol.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MOST_LINE:
            raise RequestFailed(f"The server sent an event of more than {MOST_LINE >> 20} MiB.")
        self._num_bytes += len(piece)
        if self._num_bytes > MOST_BYTES:
            raise RequestFailed(f"The server sent an answer of more than {MOST_BYTES >> 20} MiB.")
        num_before = self.num_events
        for line in lines:
            name, _, data = line.partition(b":")
            data = data.strip()
            if name == b"data" and data and data != b"[DONE]":
                self.num_events += self._take(data)
            elif name == b"error" and data:  # llama.cpp names the event so
                raise RequestFailed(f"The server reported an error: {_shown(data)}")
        if self.num_events > num_before:
            self._arrivals.append(now)
        most = 2 * self.budget + 64  # `finish` reports a few more
        if len(self._ids or ()) > most or self._num_characters > most * _LONGEST_TOKEN:
            raise RequestFailed(
                f"The server went on after the {self.budget} tokens that it was asked for."
            )

    def finish(self) -> Answer:
        """The answer of a stream that has ended.

        Raises:
            RequestFailed: it has no end, no token, or ended for another reason than its length.
        """
        if self._rest.strip():
            self.feed(b"\n", self._arrivals[-1] if self._arrivals else self.sent)
        if self._stop is None:
            raise RequestFailed(
                f"The stream broke off after {self.num_events} events with tokens: it has no "
                "finish reason."
            )
        if self._stop not in _ENDS:
            reason = _shown(repr(self._stop))
            raise RequestFailed(f"The server ended the answer with the reason {reason}.")
        if not self._arrivals:
            raise RequestFailed("The answer has no tokens.")
        return Answer(
            text="".join(self._texts),
            token_ids=None if self._ids is None else tuple(self._ids),
            stop=_ENDS[self._stop],
            num_tokens=self._num_tokens,
            prompt_tokens=self._prompt_tokens,
            counts=self._counts,
            sent=self.sent,
            arrivals=tuple(self._arrivals),
        )

    def _take(self, data: bytes) -> bool:
        """Add an event; True if it has new tokens."""
        try:
            event = self.protocol.read(data)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise RequestFailed(
                f"The server sent an event that is not an answer ({error}): {_shown(data)}"
            ) from error
        if event.error is not None:
            raise RequestFailed(f"The server reported an error: {_shown(event.error)}")
        text, ids = event.text, event.token_ids
        if event.is_whole:
            text = text[self._num_characters :]
            known = len(self._ids or ())
            ids = ids[known:] if ids and len(ids) == event.num_so_far else ids
        if text:
            self._texts.append(text)
            self._num_characters += len(text)
        if ids:
            self._ids = self._ids or []
            self._ids += ids
        self._stop = event.finish or self._stop
        self._counts = event.counts or self._counts
        if event.num_tokens is not None:
            self._num_tokens = event.num_tokens
        if event.prompt_tokens is not None:
            self._prompt_tokens = event.prompt_tokens
        is_eos = event.finish is not None and _ENDS.get(event.finish) == "eos"
        return bool(text or ids) or is_eos


def _shown(data: bytes | str) -> str:
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    return cut(printable(without_key(text)), _SHOWN)


def completions(*, is_chat: bool = False, returns_ids: bool = True) -> StreamProtocol:
    """`/v1/completions` with the prompt as token ids, or `/v1/chat/completions` with messages.

    `returns_ids` also asks for the answer's token ids, and for sampling from the plain
    distribution. Neither is part of the OpenAI API, and only some servers know them.
    """

    def body(model: str, ask: ChatRequest) -> dict[str, Any]:
        prompt = list(ask.messages if is_chat else ask.request.prompt_ids)
        return {
            "model": model,
            "messages" if is_chat else "prompt": prompt,
            "max_tokens": ask.request.max_new_tokens,
            **(_UNFILTERED if returns_ids else {}),
            **sampling_values(ask.request),
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"return_token_ids": True} if returns_ids else {}),
        }

    name, path = ("chat", "/v1/chat/completions") if is_chat else ("completions", "/v1/completions")
    return StreamProtocol(name, path, body, _read, takes_tokens=not is_chat)


def sampling_values(request: Request) -> dict[str, Any]:
    """The sampling of a request, as servers spell it."""
    sampling = request.sampling
    values: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed % _MOST_SEED,
    }
    return {**values, "top_k": sampling.top_k} if sampling.top_k else values


def error_text(error: Any) -> str | None:
    """The text of an error event; servers send a string or an object with a message."""
    if error is None:
        return None
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or error)


class _Delta(Struct, frozen=True):
    """New text of a chat."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        """The new text. Servers send the model's reasoning under either of two names, or both."""
        return (self.reasoning or self.reasoning_content or "") + (self.content or "")


class _Choice(Struct, frozen=True):
    """New text and tokens of an answer, and the reason of its end."""

    text: str | None = None
    delta: _Delta | None = None
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None


class _Usage(Struct, frozen=True):
    """Numbers of tokens, sent once."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


_NO_CHOICE, _NO_USAGE = _Choice(), _Usage()


class _Speculation(Counts, frozen=True):
    """vLLM's counts of one answer's drafts, with its names."""

    num_drafts: int | None = field(default=None, name="num_spec_steps")
    num_drafted: int | None = field(default=None, name="num_draft_tokens")
    num_accepted: int | None = field(default=None, name="num_accepted_draft_tokens")
    accepted_per_step: tuple[int, ...] | None = field(default=None, name="per_step_accepted")


class _Metrics(Struct, frozen=True):
    """vLLM's times and counts of one answer, in milliseconds."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    speculative_decoding: _Speculation | None = None


class _Chunk(Struct, frozen=True):
    """An event of the OpenAI API."""

    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    error: Any = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode


def _read(data: bytes) -> Event:
    chunk = _read_chunk(data)
    usage = chunk.usage or _NO_USAGE
    choice = chunk.choices[0] if chunk.choices else _NO_CHOICE
    text = choice.delta.text if choice.delta else choice.text or ""
    return Event(
        text,
        choice.token_ids,
        finish=choice.finish_reason,
        num_tokens=usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        counts=_counts(chunk.metrics) if chunk.metrics else None,
        error=error_text(chunk.error),
    )


def _counts(metrics: _Metrics) -> Counts:
    return replace(
        metrics.speculative_decoding or Counts(),
        prefill_ms=metrics.time_to_first_token_ms,
        decode_ms=metrics.generation_time_ms,
    )
