"""The form of requests and answers of servers, and answers put together from their events.

A `StreamProtocol` turns requests and events into JSON and back: the OpenAI API's is in
`openai_api`, an engine's own is in its file in `engines`. An `AnswerReader` puts events together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from specbench.errors import SpecbenchError, cut, printable
from specbench.measure.server.address import without_key
from specbench.models.templates import Message
from specbench.types import Request

MOST_LINE = 16 * 2**20
"""Most bytes of one event: more than any event needs."""
MOST_BYTES = 2**30
"""Most bytes of an answer: more than any answer needs."""
_LONGEST_TOKEN = 256
"""Most characters of a token."""
_SHOWN = 120
"""Characters of a server's text that a message shows."""
_ENDS = {"stop": "eos", "eos": "eos", "length": "budget", "limit": "budget"}
"""The servers' words for the end of an answer, and ours."""
_MOST_SEED = 2**31
"""Servers take seeds of 32 bits or more."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request with the chat that its prompt tokens render, for servers that take no tokens."""

    request: Request
    """The prompt as tokens, and how to answer it."""
    messages: Sequence[Message]
    """The prompt as a chat."""


class Counts(Struct, frozen=True):
    """Counts and times that a server reports for one answer; None if it does not."""

    num_drafts: int | None = None
    """Steps with a draft."""
    num_drafted: int | None = None
    """Draft tokens of all steps."""
    num_accepted: int | None = None
    """Draft tokens that were accepted."""
    accepted_per_step: tuple[int, ...] | None = None
    """Accepted draft tokens of each step with a draft [steps]."""
    prefill_ms: float | None = None
    """Milliseconds up to the first token."""
    decode_ms: float | None = None
    """Milliseconds from the first token to the last."""


class Event(Struct, frozen=True, gc=False):
    """One event of a stream: new text, new tokens, and at the end the reason and the counts."""

    text: str = ""
    """New text, or all text so far if `is_whole`."""
    token_ids: tuple[int, ...] | None = None
    """New tokens; None if the server sends none."""
    finish: str | None = None
    """The server's own word for the reason of the end; None before the end."""
    num_tokens: int | None = None
    """Tokens of the answer, as the server counts them."""
    prompt_tokens: int | None = None
    """Tokens of the prompt, as the server counts them."""
    counts: Counts | None = None
    """Counts and times of the answer."""
    error: str | None = None
    """The message of an error event."""
    is_whole: bool = False
    """The text includes that of all earlier events."""
    num_reasoning: int = 0
    """Characters in front of the text that are the model's reasoning."""
    num_so_far: int | None = None
    """Tokens so far. As many `token_ids` include those of all earlier events."""


@dataclass(frozen=True, slots=True)
class StreamProtocol:
    """A form of requests and answers."""

    name: str
    """Name in the header of a run."""
    path: str
    """Path of requests, below the server's root."""
    body: Callable[[str, ChatRequest], dict[str, Any]]
    """Makes the JSON of a request to a model."""
    read: Callable[[bytes], Event]
    """Makes the event of one `data:` line. Raises ValueError if it has another form."""
    takes_tokens: bool = True
    """Prompts are sent as tokens; else as messages of a chat."""
    keeps_connections: bool = True
    """False for servers that drop connections which they said they would keep."""


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
        self.is_refused = is_refused
        self.wants_key = wants_key
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Times are of `perf_counter`, in seconds."""

    text: str
    """The text as the server sent it."""
    token_ids: tuple[int, ...] | None
    """The tokens as the server sent them; None if it sends text only."""
    stop: str
    """Reason of the end: eos or budget."""
    num_tokens: int | None
    """Tokens as the server counted them; None if it did not."""
    prompt_tokens: int | None
    """Tokens of the prompt as the server counted them; None if it did not."""
    counts: Counts
    """Counts and times that the server reported."""
    sent: float
    """Time at which the request was first sent."""
    arrivals: tuple[float, ...]
    """Times at which text, tokens or the end token arrived [arrivals]. Tokens that arrive
    together are one arrival.
    """
    num_retries: int = 0
    """Attempts that the server refused."""
    num_reasoning: int = 0
    """Characters in front of the text that are the model's reasoning."""


class AnswerReader(Struct):
    """Reads the bytes of a stream of server-sent events, in pieces as they arrive."""

    protocol: StreamProtocol
    """The form of the events."""
    sent: float
    """Time at which the request was sent."""
    budget: int
    """Tokens asked for: a server that goes on far beyond them fails."""
    num_events: int = 0
    """Events with new tokens so far."""
    _unfinished_line: bytes = b""
    _num_bytes: int = 0
    _texts: list[str] = []
    _ids: list[int] | None = None
    _num_characters: int = 0
    _num_reasoning: int = 0
    _arrivals: list[float] = []
    _counts: Counts = Counts()
    _finish_reason: str | None = None
    _num_tokens: int | None = None
    _prompt_tokens: int | None = None

    def feed(self, piece: bytes, now: float) -> None:
        """Read the bytes that arrived at the time `now` of `perf_counter`.

        They are lines of server-sent events, `data: JSON`; a line may come in several pieces.
        `_arrivals` are the times at which new text or tokens came.

        Raises:
            RequestFailed: an error event, or something else than an event of the protocol.
        """
        *lines, self._unfinished_line = (self._unfinished_line + piece).split(b"\n")
        if len(self._unfinished_line) > MOST_LINE:
            raise RequestFailed(f"The server sent an event of more than {MOST_LINE >> 20} MiB.")
        self._num_bytes += len(piece)
        if self._num_bytes > MOST_BYTES:
            raise RequestFailed(f"The server sent an answer of more than {MOST_BYTES >> 20} MiB.")
        num_events_before = self.num_events  # those with new tokens or text
        for line in lines:
            name, _, data = line.partition(b":")
            data = data.strip()
            if name == b"data" and data and data != b"[DONE]":
                self.num_events += self._take(data)  # True (1) with text, tokens or an end token
            elif name == b"error" and data:  # llama.cpp names the event so
                raise RequestFailed(f"The server reported an error: {_shown(data)}")
        if self.num_events > num_events_before:
            self._arrivals.append(now)
        # Cuts off an endless answer. One with a few tokens too many may end: its record then fails.
        most_tokens = 2 * self.budget + 64
        if max(len(self._ids or ()), self._num_characters / _LONGEST_TOKEN) > most_tokens:
            raise RequestFailed(
                f"The server went on after the {self.budget} tokens that it was asked for."
            )

    def finish(self) -> Answer:
        """The answer of a stream that has ended, with the server's own numbers of tokens.

        Raises:
            RequestFailed: it has no reason of its end, no token, or another reason than an end
                token, the budget of tokens or the end of the context.
        """
        if self._unfinished_line.strip():  # without its line end: it counts as of the last arrival
            self.feed(b"\n", self._arrivals[-1] if self._arrivals else self.sent)
        if self._finish_reason is None:
            raise RequestFailed(
                f"The stream broke off after {self.num_events} events with tokens: it has no "
                "finish reason."
            )
        if self._finish_reason not in _ENDS:  # the servers' words for the usual ends
            reason = _shown(repr(self._finish_reason))
            raise RequestFailed(f"The server ended the answer with the reason {reason}.")
        if not self._arrivals:
            raise RequestFailed("The answer has no tokens.")
        return Answer(
            text="".join(self._texts),
            token_ids=None if self._ids is None else tuple(self._ids),  # None: it sent text only
            stop=_ENDS[self._finish_reason],  # the server's word in ours: eos or budget
            num_tokens=self._num_tokens,  # of the answer, by the server; None if it sent none
            prompt_tokens=self._prompt_tokens,  # likewise of the prompt
            counts=self._counts,  # of drafts
            sent=self.sent,  # time of `perf_counter` at which the request was sent
            arrivals=tuple(self._arrivals),  # times at which text or tokens came
            num_reasoning=self._num_reasoning,
        )

    def _take(self, data: bytes) -> bool:
        """Add an event, in JSON, to the answer; True if it has new text, tokens or an end token.

        The text and the token ids of an event are new, or all so far if `is_whole`: for ids, only
        if they are as many as the event counts (`num_so_far`). What an event lacks is None.
        """
        try:
            event = self.protocol.read(data)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise RequestFailed(
                f"The server sent an event that is not an answer ({error}): {_shown(data)}"
            ) from error
        if event.error is not None:
            raise RequestFailed(f"The server reported an error: {_shown(event.error)}")
        new_text, new_ids = event.text, event.token_ids
        if event.is_whole:
            new_text = new_text[self._num_characters :]
            if new_ids and len(new_ids) == event.num_so_far:
                new_ids = new_ids[len(self._ids or ()) :]
        if new_text:
            if self._num_reasoning == self._num_characters:  # no content so far
                self._num_reasoning += event.num_reasoning
            self._texts.append(new_text)
            self._num_characters += len(new_text)
        if new_ids:
            self._ids = self._ids or []
            self._ids += new_ids
        self._finish_reason = event.finish or self._finish_reason  # the server's word for it
        self._counts = event.counts or self._counts  # of drafts, and times
        if event.num_tokens is not None:  # of the answer, by the server
            self._num_tokens = event.num_tokens
        if event.prompt_tokens is not None:
            self._prompt_tokens = event.prompt_tokens
        # `_ENDS` has our words for the server's. An end token may come without text.
        has_end_token = event.finish is not None and _ENDS.get(event.finish) == "eos"
        return bool(new_text or new_ids) or has_end_token


def sampling_values(request: Request) -> dict[str, Any]:
    """The sampling of a request, as servers spell it."""
    sampling = request.sampling
    values: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed % _MOST_SEED,
    }
    if sampling.top_k:
        values["top_k"] = sampling.top_k
    return values


def error_text(error: Any) -> str | None:
    """The text of an error event; servers send a string or an object with a message."""
    if error is None:
        return None
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or error)


def _shown(data: bytes | str) -> str:
    """The beginning of a server's text, as messages show it."""
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    return cut(printable(without_key(text)), _SHOWN)
