"""Answers put together from the events of a stream, with the time at which each arrived."""

from codecs import BOM_UTF8

import msgspec
from msgspec import Struct

from specbench.errors import cut, printable
from specbench.measure.server.address import without_key
from specbench.measure.server.stream import Answer, Counts, RequestFailed, StreamProtocol

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
    _reasoning_tokens: int = 0
    _arrivals: list[float] = []
    _counts: Counts = Counts()
    _finish_reason: str | None = None
    _num_tokens: int | None = None
    _prompt_tokens: int | None = None
    _cached_tokens: int | None = None

    def feed(self, piece: bytes, now: float) -> None:
        """Read the bytes that arrived at the time `now` of `perf_counter`.

        They are lines of server-sent events, `data: JSON`; a line may come in several pieces. The
        answer so far has `_ids` of tokens (None without), `_num_characters` of text, and
        `_arrivals`, the times at which tokens or text came.

        Raises:
            RequestFailed: an error event, or a line that is not an event of the protocol.
        """
        *lines, self._unfinished_line = (self._unfinished_line + piece).split(b"\n")
        if len(self._unfinished_line) > MOST_LINE:
            raise RequestFailed(f"The server sent an event of more than {MOST_LINE >> 20} MiB.")
        self._num_bytes += len(piece)
        if self._num_bytes > MOST_BYTES:
            raise RequestFailed(f"The server sent an answer of more than {MOST_BYTES >> 20} MiB.")
        num_events_before = self.num_events  # those with new tokens or text
        for line in lines:
            name, _, data = line.removeprefix(BOM_UTF8).partition(b":")
            data = data.strip().removeprefix(BOM_UTF8)
            if name == b"data" and data and data != b"[DONE]":
                self.num_events += self._take(data)  # True (1) with text, tokens or an end token
            elif name == b"error" and data:  # llama.cpp's name of such an event
                raise RequestFailed(f"The server reported an error: {_shown(data)}")
        if self.num_events > num_events_before:
            self._arrivals.append(now)
        # Cuts off an endless answer. An answer with a few tokens too many may end, and then fails.
        most_tokens = 2 * self.budget + 64
        num_tokens = len(self._ids or ())
        if num_tokens > most_tokens or self._num_characters > most_tokens * _LONGEST_TOKEN:
            raise RequestFailed(
                f"The server went on after the {self.budget} tokens that it was asked for."
            )

    def finish(self) -> Answer:
        """The answer of an ended stream, with the token counts that the server sent.

        Raises:
            RequestFailed: the stream has no token or no finish reason, or the reason is not one of:
                end token, budget of tokens used up, context full.
        """
        if self._unfinished_line.strip():
            # The last line has no line end. It is read with the time of the last arrival.
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
            stop=_ENDS[self._finish_reason],  # our word for the reason: eos or budget
            num_tokens=self._num_tokens,  # the server's count; None if it sent none
            prompt_tokens=self._prompt_tokens,  # the server's count; None if it sent none
            cached_tokens=self._cached_tokens,  # prompt tokens that the server had in a cache
            counts=self._counts,  # counts of drafts
            sent=self.sent,  # time of `perf_counter` at which the request was sent
            arrivals=tuple(self._arrivals),  # times at which text or tokens came
            num_reasoning=self._num_reasoning,  # characters of reasoning before the content
            reasoning_tokens=self._reasoning_tokens,  # the server's count; 0 if it sent none
        )

    def _take(self, data: bytes) -> bool:
        """Add an event, in JSON, to the answer; True if it has new text, tokens or an end token.

        The text and the token ids of an event are new. If `is_whole`, the text has all characters
        so far, and the ids are all ids so far if there are `num_so_far` of them. Fields that an
        event lacks are None. The answer so far has `_texts`, `_ids` (None before any), and the
        server's own counts.
        """
        try:
            event = self.protocol.read(data)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise RequestFailed(
                f"The server sent an event that is not an answer ({error}): {_shown(data)}"
            ) from error
        if event.error is not None:
            raise RequestFailed(f"The server reported an error: {_shown(event.error)}")
        new_text = event.text
        new_ids = event.token_ids
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
        self._reasoning_tokens = event.reasoning_tokens or self._reasoning_tokens
        self._finish_reason = event.finish or self._finish_reason  # the server's word for it
        self._counts = event.counts or self._counts  # counts of drafts, and times
        if event.num_tokens is not None:  # the server's count of the answer's tokens
            self._num_tokens = event.num_tokens
        if event.prompt_tokens is not None:
            self._prompt_tokens = event.prompt_tokens
            self._cached_tokens = event.cached_tokens
        # `_ENDS` has our words for the server's. An end token may come without text.
        has_end_token = event.finish is not None and _ENDS.get(event.finish) == "eos"
        return bool(new_text or new_ids) or has_end_token


def _shown(data: bytes | str) -> str:
    """The beginning of a server's text, as messages show it."""
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    return cut(printable(without_key(text)), _SHOWN)
