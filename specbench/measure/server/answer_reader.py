"""Put an answer together from the events of its stream and the times at which these arrived."""

from codecs import BOM_UTF8

import msgspec
from msgspec import Struct

from specbench.errors import cut, printable
from specbench.measure.server.address import without_key
from specbench.measure.server.stream import Answer, Counts, RequestFailed, StreamProtocol

MOST_LINE = 16 * 2**20
"""The most bytes of an event. No event needs that many."""
MOST_BYTES = 2**30
"""The most bytes of an answer. No answer needs that many."""
_LONGEST_TOKEN = 256
"""The most characters that a token may have."""
_SHOWN = 120
"""Characters of a server's text that a message shows."""
_ENDS = {"stop": "eos", "eos": "eos", "length": "budget", "limit": "budget"}
"""Our words for why an answer ended, by the words that servers use."""


class AnswerReader(Struct):
    """Reads the bytes of a stream of server-sent events, in pieces as they arrive."""

    protocol: StreamProtocol
    """The form of the events."""
    sent: float
    """Time of `perf_counter` at which the request was sent."""
    budget: int
    """The most tokens asked for. A server that goes on far beyond them fails."""
    num_events: int = 0
    """The number of events so far that had new text, new tokens or an end token."""
    _unfinished_line: bytes = b""
    """The beginning of a line whose end has not arrived."""
    _num_bytes: int = 0
    """The number of bytes so far."""
    _texts: list[str] = []
    """The text so far, in pieces."""
    _ids: list[int] | None = None
    """The token ids so far; None as long as the server sends none."""
    _num_characters: int = 0
    """The number of characters in the text so far."""
    _num_reasoning: int = 0
    """The number of characters at the beginning of the text that are the model's reasoning."""
    _reasoning_tokens: int = 0
    """Tokens of reasoning, as the server counts them; 0 if it reports none."""
    _arrivals: list[float] = []
    """Times of `perf_counter` at which text, tokens or an end token arrived."""
    _counts: Counts = Counts()
    """The server's counts of drafts, and the times that it reports."""
    _finish_reason: str | None = None
    """The server's word for why the answer ended; None before the end."""
    _num_tokens: int | None = None
    """Tokens of the answer, as the server counts them; None if it reports none."""
    _prompt_tokens: int | None = None
    """Tokens of the prompt, as the server counts them; None if it reports none."""
    _cached_tokens: int | None = None
    """Tokens of the prompt that the server had in a cache; None if it does not say."""

    def feed(self, piece: bytes, now: float) -> None:
        """Read the bytes that arrived at the time `now` of `perf_counter`, and add their events.

        The stream consists of lines such as `data: JSON`, one per event. A piece may begin and end
        within a line.

        Raises:
            RequestFailed: the server reports an error, a line is not an event of the protocol, or
                the answer is far too long.
        """
        *lines, self._unfinished_line = (self._unfinished_line + piece).split(b"\n")
        if len(self._unfinished_line) > MOST_LINE:
            raise RequestFailed(f"The server sent an event of more than {MOST_LINE >> 20} MiB.")
        self._num_bytes += len(piece)
        if self._num_bytes > MOST_BYTES:
            raise RequestFailed(f"The server sent an answer of more than {MOST_BYTES >> 20} MiB.")
        num_events_before = self.num_events  # events with new text, new tokens or an end token
        for line in lines:
            name, _, content = line.removeprefix(BOM_UTF8).partition(b":")
            content = content.strip().removeprefix(BOM_UTF8)
            if name == b"data" and content and content != b"[DONE]":
                self.num_events += self._take(content)  # 1 with text, tokens or an end token
            elif name == b"error" and content:  # llama.cpp's name of a line with an error
                raise RequestFailed(f"The server reported an error: {_shown(content)}")
        if self.num_events > num_events_before:
            self._arrivals.append(now)
        # Break off an endless answer. The limit is far above the budget: a few tokens too many
        # are noticed after the end of the answer.
        most_tokens = 2 * self.budget + 64
        num_ids = len(self._ids or ())  # 0 if the server sends text only
        if num_ids > most_tokens or self._num_characters > most_tokens * _LONGEST_TOKEN:
            raise RequestFailed(
                f"The server went on after the {self.budget} tokens that it was asked for."
            )

    def finish(self) -> Answer:
        """The whole answer, once the stream has ended.

        Raises:
            RequestFailed: the stream has no token or no finish reason, the reason is not one of
                `_ENDS`, or the last line is an error or not an event of the protocol.
        """
        if self._unfinished_line.strip():
            # The last line has no line end. It gets the time of the last arrival.
            self.feed(b"\n", self._arrivals[-1] if self._arrivals else self.sent)
        if self._finish_reason is None:
            raise RequestFailed(
                f"The stream broke off after {self.num_events} events with tokens: it has no "
                "finish reason."
            )
        if self._finish_reason not in _ENDS:
            reason = _shown(repr(self._finish_reason))
            raise RequestFailed(f"The server ended the answer with the reason {reason}.")
        if not self._arrivals:
            raise RequestFailed("The answer has no tokens.")
        return Answer(
            text="".join(self._texts),
            token_ids=None if self._ids is None else tuple(self._ids),  # None: it sent text only
            stop=_ENDS[self._finish_reason],  # our word for why it ended: "eos" or "budget"
            num_tokens=self._num_tokens,  # the server's count; None if it sent none
            prompt_tokens=self._prompt_tokens,  # the server's count; None if it sent none
            cached_tokens=self._cached_tokens,  # prompt tokens that the server had in a cache
            counts=self._counts,  # counts of drafts
            sent=self.sent,  # time of `perf_counter` at which the request was sent
            arrivals=tuple(self._arrivals),  # times at which text or tokens came
            num_reasoning=self._num_reasoning,  # characters of reasoning before the content
            reasoning_tokens=self._reasoning_tokens,  # the server's count; 0 if it sent none
        )

    def _take(self, event_json: bytes) -> bool:
        """Add an event to the answer. True if it brought new text, new tokens or an end token.

        Most servers send the new text and the new token ids. With `event.is_whole`, the event has
        the text from the beginning of the answer, and only its end is new. The same is true of the
        ids if there are `event.num_so_far` of them. A count that an event does not report keeps its
        value, but an event with `prompt_tokens` sets `cached_tokens` too, even to None.

        Raises:
            RequestFailed: the JSON is not an event of the protocol, or the server reports an error.
        """
        try:
            event = self.protocol.read(event_json)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise RequestFailed(
                f"The server sent an event that is not an answer ({error}): {_shown(event_json)}"
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
            # All text so far is reasoning. (Events with `is_whole` do not mark reasoning.)
            if self._num_reasoning == self._num_characters:
                self._num_reasoning += event.num_reasoning
            self._texts.append(new_text)
            self._num_characters += len(new_text)
        if new_ids:
            self._ids = self._ids or []
            self._ids += new_ids
        self._reasoning_tokens = event.reasoning_tokens or self._reasoning_tokens
        self._finish_reason = event.finish or self._finish_reason
        self._counts = event.counts or self._counts
        if event.num_tokens is not None:
            self._num_tokens = event.num_tokens
        if event.prompt_tokens is not None:
            self._prompt_tokens = event.prompt_tokens
            self._cached_tokens = event.cached_tokens
        # An end token may come without text. `_ENDS` translates the server's word for it to "eos".
        has_end_token = event.finish is not None and _ENDS.get(event.finish) == "eos"
        return bool(new_text or new_ids) or has_end_token


def _shown(sent: bytes | str) -> str:
    """The beginning of a text that a server sent, as messages show it."""
    text = sent if isinstance(sent, str) else sent.decode("utf-8", "replace")
    return cut(printable(without_key(text)), _SHOWN)
