"""Requests to one server: what it is, and an answer streamed and timed, or why there is none.

A request is sent again only if the server refused it before it began. A connection is reused
only right away: servers drop idle ones, which would look like a failure. The user's mistakes
show when a server is asked for its models, its software, and the form of requests that it takes.

Also the counters of a server, in Prometheus' text format, and how much they grew. Engines say
which of their metrics matter. Values are summed over labels, so that a server with several
engines counts for all of them.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import msgspec

from specbench.errors import UserError, cut, describe_error, first_line, printable
from specbench.log.backend import ServerHeader
from specbench.log.machine import UNKNOWN
from specbench.measure.server import NAMES
from specbench.measure.server.address import authorization, without_key
from specbench.measure.server.engine import load_engine
from specbench.measure.server.stream import (
    Answer,
    AnswerReader,
    ChatRequest,
    RequestFailed,
    StreamProtocol,
    completions,
)
from specbench.models.cards import ModelCard
from specbench.models.chat import ChatCodec
from specbench.types import Request

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

CONNECT_S, SHORT_S, REQUEST_S = 10.0, 5.0, 600.0
"""Seconds to connect, for a short question to the server, and by default for a request."""
KEPT_S = 1.0
"""Seconds after which an idle connection is not used again."""
MOST_TEXT = 4 * 2**20
"""Most bytes of a server's models, version or metrics."""
MOST_ATTEMPTS, FIRST_WAIT_S, MOST_WAIT_S = 4, 0.25, 10.0
_REFUSALS = (429, 503)
"""HTTP statuses with which a server says that it did not begin the request."""
_SHOWN = 200
_START = (
    "Start one, for example `vllm serve MODEL --port 8000` or `llama-server -m MODEL.gguf --port "
    "8000`, and give its address: --url http://127.0.0.1:8000."
)
HELLO = [{"role": "user", "content": "Hello"}]
PROBE_TOKENS = 8
_MOST_CONTEXT = 2**31
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SAMPLE = re.compile(rf"^([\w:]+)(?:\{{(.*)\}})? +({_NUMBER})(?=\s|$)", re.M | re.A)
"""A line: name{labels} number. A time may follow."""
_POSITION = re.compile(r'position="(\d{1,3})"', re.A)


def read_counters(text: str) -> dict[str, float]:
    """The counters known here, by our names: `accepted_at_1` is the first draft position.

    Empty for a text that is not a list of metrics.
    """
    known = {
        f"{name}:{theirs}": ours
        for name in NAMES
        for theirs, ours in load_engine(name).counters.items()
    }
    found: dict[str, float] = {}
    for name, labels, number in _SAMPLE.findall(text):
        ours = known.get(name.removesuffix("_total"))
        if ours == "accepted_at":
            position = _POSITION.search(labels)
            ours = f"accepted_at_{int(position[1]) + 1}" if position else None
        if ours:
            found[ours] = found.get(ours, 0.0) + float(number)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The growth of every counter; empty if one fell, which means that the server restarted."""
    if any(after.get(name, 0.0) < value for name, value in before.items()):
        return {}
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


class Client:
    """A client of the server at `root`, to be entered in an event loop."""

    def __init__(self, root: str, *, request_s: float | None = None) -> None:
        self.root, self._request_s = root.rstrip("/"), request_s or REQUEST_S
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

        Raises:
            RequestFailed: there is none. If the server no longer answers at all, `dead_reason` says
                so, and later requests fail at once until `check_alive` finds it again.
        """
        body, sent = msgspec.json.encode(protocol.body(model, ask)), perf_counter()
        num_tried = 0
        while not self.dead_reason:
            try:
                answer = await self._stream(protocol, body, ask.request.max_new_tokens)
                return replace(answer, sent=sent, num_retries=num_tried) if num_tried else answer
            except RequestFailed as failure:
                num_tried += 1
                if not failure.is_refused or num_tried == MOST_ATTEMPTS:
                    tried = f" It was tried {num_tried} times." if num_tried > 1 else ""
                    raise RequestFailed(failure.message + tried) from failure
                own_s, asked_s = FIRST_WAIT_S * 2.0 ** (num_tried - 1), failure.retry_after_s
                await asyncio.sleep(min(own_s if asked_s is None else asked_s, MOST_WAIT_S))
        raise RequestFailed(self.dead_reason)

    async def check_alive(self) -> str | None:
        """Ask the server for its models. Keeps and returns the reason if it is dead."""
        self.dead_reason = None
        try:
            await self.get("/v1/models")
        except RequestFailed as failure:
            if not failure.is_refused:  # one that is busy does answer
                self.dead_reason = f"The server at {self.root} no longer answers: {failure.message}"
        return self.dead_reason

    async def counters(self) -> dict[str, float]:
        """The server's counters now; empty if it has none."""
        try:
            return read_counters(await self.get("/metrics"))
        except RequestFailed:
            return {}

    async def get(self, path: str) -> str:
        """The text at a path, within seconds. Raises RequestFailed if there is none."""
        from aiohttp import ClientError, ClientTimeout

        try:
            limit = ClientTimeout(total=SHORT_S)
            async with self._session.get(self.root + path, timeout=limit) as response:
                if response.status != 200:
                    raise await _refusal(response)
                content = bytearray()
                async for piece in response.content.iter_any():
                    content += piece
                    if len(content) > MOST_TEXT:
                        raise RequestFailed(f"{path} has more than {MOST_TEXT >> 20} MiB.")
                return without_key(content.decode("utf-8", "replace"))
        except TimeoutError as error:
            raise RequestFailed(f"{path} was not answered within {SHORT_S:g} s.") from error
        except (ClientError, OSError, ValueError) as error:
            raise RequestFailed(_connection_text(error)) from error

    async def _stream(self, protocol: StreamProtocol, body: bytes, budget: int) -> Answer:
        """One attempt. Time runs from the moment before the request is sent."""
        from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError

        url = self.root + protocol.path
        headers = {"Content-Type": "application/json"}
        if not protocol.keeps_connections:
            headers["Connection"] = "close"
        reader = AnswerReader(protocol, perf_counter(), budget)
        try:
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise await _refusal(response)
                if response.content_type != "text/event-stream":
                    raise RequestFailed(
                        f"The server answered with {response.content_type}, not with a stream of "
                        f"events: {await _start_of(response)}"
                    )
                async for piece in response.content.iter_any():
                    reader.feed(piece, perf_counter())
            return reader.finish()
        except (ClientError, OSError) as error:
            await self.check_alive()
            text = _connection_text(error)
            if isinstance(error, (ClientConnectorError, ConnectionTimeoutError)):
                raise RequestFailed(text, is_refused=True) from error
            if isinstance(error, TimeoutError):
                text = f"No whole answer within {self._request_s:g} s:"
            arrived = f"{reader.num_events} events with tokens had arrived."
            raise RequestFailed(f"{text} {arrived}") from error


async def _refusal(response: ClientResponse) -> RequestFailed:
    """The failure that a status other than 200 means."""
    text = await _start_of(response)
    wait = response.headers.get("Retry-After", "")
    return RequestFailed(
        f"The server answered with HTTP status {response.status}: {text}",
        is_refused=response.status in _REFUSALS,
        wants_key=response.status in (401, 403),
        retry_after_s=float(wait) if wait.isdigit() else None,
    )


async def _start_of(response: ClientResponse) -> str:
    """The error message in a response, or the start of its text."""
    text = without_key((await response.content.read(64 * 2**10)).decode("utf-8", "replace"))
    try:
        found: Any = msgspec.json.decode(text)
        error = found.get("error", found)
        text = error if isinstance(error, str) else str(error["message"])
    except (msgspec.DecodeError, RecursionError, AttributeError, KeyError, TypeError):
        pass
    return cut(printable(" ".join(text.split())), _SHOWN)


def _connection_text(error: Exception) -> str:
    """Return the message for a connection error."""
    return f"The connection to the server failed ({printable(describe_error(error))})."


class _Model(msgspec.Struct, frozen=True):
    id: str
    root: str | None = None
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that answers. `context` is None if it does not tell."""

    header: ServerHeader
    protocol: StreamProtocol
    context: int | None = None
    has_counters: bool = False


async def find_server(
    client: Client, card: ModelCard, codec: ChatCodec, *, served_model: str
) -> FoundServer:
    """Ask a server what it is and whether it serves a model, with a short answer to a prompt.

    Raises:
        UserError: nothing answers there, the model is not served, or no form of request works.
    """
    try:
        listed = await client.get("/v1/models")
    except RequestFailed as failure:
        raise UserError(
            f"There is no server at {client.root}: GET {client.root}/v1/models failed. "
            f"{failure.message}",
            _START,
        ) from failure
    model, context = _served(listed, client.root, card, served_model)
    software, protocols = await _software(client)
    probe = ChatRequest(Request(codec.render(HELLO), PROBE_TOKENS), HELLO)
    failures = []
    for protocol in protocols:
        try:
            answer = await client.complete(protocol, model, probe)
        except RequestFailed as failure:
            failures.append(f"{protocol.path}: {failure.message}")
            continue
        header = ServerHeader(
            url=client.root,
            software=software,
            model=model,
            protocol=protocol.name,
            sends_token_ids=answer.token_ids is not None,
        )
        has_counters = bool(await client.counters())  # some appear with the first answer
        return FoundServer(header, protocol, context, has_counters)
    raise UserError(
        f"The server at {client.root} gave no answer. {' '.join(dict.fromkeys(failures))}",
        "It must stream completions of the OpenAI API. See its log.",
    )


def _served(listed: str, root: str, card: ModelCard, served_model: str) -> tuple[str, int | None]:
    """The model's name at the server and its context."""
    try:
        models = msgspec.json.decode(listed, type=_Models).data
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(
            f"{root}/v1/models is not a list of models: {printable(listed[:80])}", _START
        ) from error
    names = {served_model} if served_model else {card.name, card.repo, card.repo.rpartition("/")[2]}
    for model in models:
        if model.id in names or (not served_model and model.root in names):
            meta = model.meta or {}
            context = model.max_model_len or meta.get("n_ctx")
            is_known = isinstance(context, int) and 0 < context < _MOST_CONTEXT
            return model.id, context if is_known else None
    serves = ", ".join(model.id for model in models) or "no model"
    wanted = served_model or card.name
    raise UserError(
        f"The server at {root} does not serve {wanted}. It serves {first_line(serves)}.",
        f"If that is {card.name} under another name: --served-model NAME. Else name it by --model: "
        "its tokenizer is needed.",
    )


async def _software(client: Client) -> tuple[str, tuple[StreamProtocol, ...]]:
    """The server's software with its version, and the forms of requests to try, the best first."""
    general = tuple(
        completions(is_chat=is_chat, returns_ids=returns_ids)
        for is_chat in (False, True)
        for returns_ids in (True, False)
    )
    for engine in map(load_engine, NAMES):
        path, key = engine.version
        try:
            values: Any = msgspec.json.decode(await client.get(path))
        except (RequestFailed, msgspec.DecodeError, RecursionError):
            continue
        if isinstance(values, dict) and isinstance(version := values.get(key), str):
            own = (engine.protocol,) if engine.protocol else ()
            return first_line(f"{engine.title} {version or UNKNOWN}"), (*own, *general)
    return UNKNOWN, general
