"""One streamed answer: its events put together, with the times at which its tokens arrived.

Knows events and arrival times. Must not know HTTP nor tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from specbench.errors import SpecbenchError, printable
from specbench.measure.server.stream import Counts, Event, StreamProtocol

MOST_LINE = 16 * 2**20
"""Bytes of one event. A server that sends a longer one sends no tokens."""
_SHOWN = 120
_ENDS = {"stop": "eos", "eos": "eos", "length": "budget", "limit": "budget"}
"""The servers' words for the end of an answer."""


class RequestFailed(SpecbenchError):
    """A request that gave no answer. `is_refused` if the server did not begin it.

    `retry_after_s` is the wait that the server asks for.
    """

    def __init__(
        self, reason: str, *, is_refused: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.is_refused, self.retry_after_s = is_refused, retry_after_s


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Times are of `perf_counter`, in seconds.

    `arrivals` are the times at which text, tokens or the end token arrived [arrivals]; tokens that
    arrive together are one arrival. `token_ids` is None if the server sends text only.
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


@dataclass(slots=True)
class AnswerReader:
    """Reads the bytes of a stream of server-sent events, in pieces as they arrive."""

    protocol: StreamProtocol
    sent: float
    num_events: int = 0
    _rest: bytes = b""
    _texts: list[str] = field(default_factory=list)
    _ids: list[int] | None = None
    _num_characters: int = 0
    _arrivals: list[float] = field(default_factory=list)
    _counts: Counts = field(default_factory=Counts)
    _stop: str | None = None
    _num_tokens: int | None = None
    _prompt_tokens: int | None = None

    def feed(self, piece: bytes, now: float) -> None:
        """Read what arrived at the time `now`.

        Raises:
            RequestFailed: an error event, or something that is no event of the protocol.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MOST_LINE:
            raise RequestFailed(f"The server sent an event of more than {MOST_LINE >> 20} MiB.")
        num_before = self.num_events
        for line in lines:
            name, _, data = line.partition(b":")
            data = data.strip()
            if name == b"data" and data and data != b"[DONE]":
                self.num_events += self._take(self._event(data))
            elif name == b"error" and data:  # llama.cpp names the event so
                raise RequestFailed(f"The server reported an error: {_shown(data)}")
        if self.num_events > num_before:
            self._arrivals.append(now)

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
            raise RequestFailed(f"The server ended the answer with the reason {self._stop!r}.")
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

    def _event(self, data: bytes) -> Event:
        try:
            event = self.protocol.read(data)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise RequestFailed(
                f"The server sent an event that is no answer ({error}): {_shown(data)}"
            ) from error
        if event.error is not None:
            raise RequestFailed(f"The server reported an error: {printable(event.error)}")
        return event

    def _take(self, event: Event) -> bool:
        """Add an event; True if it has new tokens."""
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


def _shown(data: bytes) -> str:
    text = printable(data[: _SHOWN + 1].decode("utf-8", "replace"))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
