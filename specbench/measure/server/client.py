"""Send requests to a server. The result is a streamed answer with its times, or the reason why it
failed.

A request is sent again only if the server refused it before it began to answer. A connection is
reused only right away, because servers drop idle connections, and a dropped one would look like a
failure.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import msgspec

from specbench.errors import cut, describe_error, printable
from specbench.measure.server.address import authorization, without_key
from specbench.measure.server.answer_reader import AnswerReader
from specbench.measure.server.counters import read_counters
from specbench.measure.server.stream import (
    Answer,
    ChatRequest,
    RequestFailed,
    StreamProtocol,
)

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

CONNECT_S = 10.0
"""The most seconds to connect."""
SHORT_S = 5.0
"""The most seconds for a short question to the server."""
REQUEST_S = 600.0
"""The most seconds for a request, by default."""
KEPT_S = 1.0
"""Seconds after which an idle connection is not used again."""
MOST_TEXT = 4 * 2**20
"""The most bytes of a server's list of models, version or metrics."""
MOST_ATTEMPTS = 4
"""The most times that a request is sent if the server refuses it."""
FIRST_WAIT_S = 0.25
"""Seconds before the second attempt. The wait doubles with each further attempt."""
MOST_WAIT_S = 10.0
"""The most seconds before an attempt."""
_REFUSALS = (429, 503)
"""HTTP statuses with which a server says that it did not begin the request."""
_MOST_ERROR = 64 * 2**10
"""The most bytes that are read from a refusal."""
_SHOWN = 200
"""Characters of a refusal that a message shows."""


class Client:
    """A client of the server at the address `root`. Enter it in an event loop."""

    def __init__(self, root: str, *, request_s: float | None = None) -> None:
        self.root = root.rstrip("/")
        self._request_s = request_s or REQUEST_S  # most seconds for a request
        # The reason why the server no longer answers at all; None as long as it answers.
        self.dead_reason: str | None = None

    async def __aenter__(self) -> Self:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        self._session: ClientSession = ClientSession(
            headers=authorization(),
            connector=TCPConnector(limit=0, keepalive_timeout=KEPT_S),
            timeout=ClientTimeout(total=self._request_s, sock_connect=CONNECT_S),
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def complete(self, protocol: StreamProtocol, model: str, ask: ChatRequest) -> Answer:
        """The answer to a request, timed from its first attempt.

        A request is sent again after a wait if the server refuses it, or if it gets no connection
        to a server that still answers. It is sent at most MOST_ATTEMPTS times.

        Args:
            protocol: the form of requests and answers that the server takes.
            model: the model's name at the server.
            ask: the prompt, as tokens and as a chat, with the sampling and the most new tokens.

        Raises:
            RequestFailed: there is no answer. If the server no longer answers at all, the client's
                `dead_reason` is set. Then every request fails at once, until `check_alive` gets an
                answer.
        """
        body = msgspec.json.encode(protocol.body(model, ask))
        first_sent = perf_counter()  # time of the first attempt
        num_refused = 0  # attempts that were refused or got no connection
        while not self.dead_reason:
            try:
                answer = await self._stream(protocol, body, ask.request.max_new_tokens)
            except RequestFailed as failure:  # of `_stream`
                num_attempts = num_refused + 1
                if not failure.is_refused or num_attempts == MOST_ATTEMPTS:
                    reason = failure.message
                    if num_attempts > 1:
                        reason += f" The request was sent {num_attempts} times."
                    raise RequestFailed(reason) from failure
                wait_s = failure.retry_after_s  # the wait that the server asks for, or None
                if wait_s is None:
                    wait_s = FIRST_WAIT_S * 2.0**num_refused  # doubles with each refusal
                num_refused += 1
                await asyncio.sleep(min(wait_s, MOST_WAIT_S))
            else:
                if num_refused == 0:
                    return answer
                # `sent` is the time of the last attempt, but the request's time includes the waits.
                return replace(answer, sent=first_sent, num_retries=num_refused)
        raise RequestFailed(self.dead_reason)

    async def check_alive(self) -> str | None:
        """Ask the server for its models. If it does not answer, keep and return the reason."""
        self.dead_reason = None
        try:
            await self.get("/v1/models")
        except RequestFailed as failure:
            if not failure.is_refused:  # a busy server does answer
                self.dead_reason = f"The server at {self.root} no longer answers: {failure.message}"
        return self.dead_reason

    async def counters(self) -> dict[str, float]:
        """The server's counters now; empty if it has none."""
        try:
            return read_counters(await self.get("/metrics"))
        except RequestFailed:
            return {}

    async def get(self, path: str) -> str:
        """The text at a path of the server, such as "/metrics", without the user's API key.

        Raises:
            RequestFailed: the connection fails, the status is not 200, the text has more than
                MOST_TEXT bytes, or it has not arrived within SHORT_S seconds.
        """
        from aiohttp import ClientError, ClientTimeout

        try:
            timeout = ClientTimeout(total=SHORT_S)
            async with self._session.get(self.root + path, timeout=timeout) as response:
                if response.status != 200:
                    raise await _refusal(response)  # a RequestFailed with the server's message
                content = bytearray()
                async for piece in response.content.iter_any():
                    content += piece
                    if len(content) > MOST_TEXT:
                        raise RequestFailed(f"{path} has more than {MOST_TEXT >> 20} MiB.")
                return without_key(content.decode("utf-8", "replace"))
        except TimeoutError as error:
            raise RequestFailed(f"{path} was not answered within {SHORT_S:g} s.") from error
        # ValueError: the host's name cannot be encoded
        except (ClientError, OSError, ValueError) as error:
            raise RequestFailed(_connection_text(error)) from error  # the error in words

    async def _stream(self, protocol: StreamProtocol, body: bytes, budget: int) -> Answer:
        """The answer to one attempt, timed from the moment before the request is sent.

        Args:
            protocol: the form of requests and answers that the server takes, with their path.
            body: the request in JSON.
            budget: the most tokens of the answer that the request asks for.

        Raises:
            RequestFailed: there is no whole answer. The exception's `is_refused` is True if the
                server did not begin to answer, so that the request may be sent again.
        """
        from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError

        url = self.root + protocol.path
        headers = {"Content-Type": "application/json"}
        if not protocol.keeps_connections:  # the server drops connections that it said it keeps
            headers["Connection"] = "close"
        # Puts the answer together from the pieces of the stream, and notes when they arrived.
        reader = AnswerReader(protocol, sent=perf_counter(), budget=budget)
        try:
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise await _refusal(response)  # a RequestFailed with the server's message
                if response.content_type != "text/event-stream":
                    raise RequestFailed(
                        f"The server answered with {response.content_type}, not with a stream of "
                        f"events: {await _start_of(response)}"
                    )
                async for piece in response.content.iter_any():
                    reader.feed(piece, perf_counter())
            # Like `feed`, raises RequestFailed if the stream is not a whole answer.
            return reader.finish()
        except (ClientError, OSError) as error:
            await self.check_alive()  # notes if the server no longer answers at all
            reason = _connection_text(error)  # the error in words
            # Without a connection, the server has not begun: the request may be sent again.
            if isinstance(error, (ClientConnectorError, ConnectionTimeoutError)):
                raise RequestFailed(reason, is_refused=True) from error
            if isinstance(error, TimeoutError):  # the whole request took too long
                reason = f"No complete answer within {self._request_s:g} s:"
            raise RequestFailed(
                f"{reason} {reader.num_events} events with tokens had arrived."
            ) from error


async def _refusal(response: ClientResponse) -> RequestFailed:
    """The failure of a request whose response has an HTTP status other than 200."""
    reason = await _start_of(response)
    wait_s = response.headers.get("Retry-After", "")  # a text: seconds, or a date
    return RequestFailed(
        f"The server answered with HTTP status {response.status}: {reason}",
        is_refused=response.status in _REFUSALS,
        wants_key=response.status in (401, 403),
        retry_after_s=float(wait_s) if wait_s.isdigit() else None,
    )


async def _start_of(response: ClientResponse) -> str:
    """The error message in a response, or the whole text without one, cut to _SHOWN characters.

    The message is in JSON: `{"error": "..."}`, `{"error": {"message": "..."}}` or
    `{"message": "..."}`. At most _MOST_ERROR bytes are read. The user's API key is removed.
    """
    content = await response.content.read(_MOST_ERROR)
    text = without_key(content.decode("utf-8", "replace"))
    try:
        body: Any = msgspec.json.decode(text)
        error = body.get("error", body)  # a text, or an object with a message
        text = error if isinstance(error, str) else str(error["message"])
    # The response is not JSON, or has no message: its text stays.
    except (msgspec.DecodeError, RecursionError, AttributeError, KeyError, TypeError):
        pass
    # On one line, without control characters.
    return cut(printable(" ".join(text.split())), _SHOWN)


def _connection_text(error: Exception) -> str:
    """A sentence about an error of the connection, in words that a user understands."""
    from aiohttp import ClientPayloadError, ServerDisconnectedError

    # aiohttp's own errors keep the error of the system in `os_error`.
    if isinstance(error, ConnectionRefusedError) or isinstance(
        getattr(error, "os_error", None), ConnectionRefusedError
    ):
        return "No program listens at this address: the connection was refused."
    if isinstance(error, (ClientPayloadError, ServerDisconnectedError)):
        return "The server closed the connection before the end of its answer."
    return f"The connection to the server failed ({printable(describe_error(error))})."
