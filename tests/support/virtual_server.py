"""Servers in this process, in simulated time: times, acceptance and faults are drawn.

The clock of the event loop jumps to the next event. The runner, the client's retries, and the code
that reads streams and counters are a run's own.
"""

import asyncio
import json
import selectors
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from unittest.mock import patch

import numpy as np

from specbench.measure.server import backend, blocks, client, counters, running_setup, servers
from specbench.measure.server.answer_reader import AnswerReader
from specbench.measure.server.client import Client
from specbench.measure.server.stream import Answer, RequestFailed, StreamProtocol
from specbench.models.chat import ChatCodec
from specbench.settings.load_table import LoadTable

PLAIN_TABLE = LoadTable.of([(1, 0)])
"""No drafts at any load."""
WORDS = " the of and to in is for that with as on by at from are this be it an or"


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, clock: "Clock") -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "nothing is left to wait for"
            self._clock.now_s += timeout
        return events


@dataclass
class Clock:
    """The simulated time, in seconds."""

    now_s: float = 1000.0

    def read(self) -> float:
        return self.now_s

    def loop(self) -> asyncio.AbstractEventLoop:
        """An event loop that runs in this time."""
        loop = asyncio.SelectorEventLoop(_JumpingSelector(self))
        loop.time = self.read  # type: ignore[method-assign]
        return loop


@dataclass(eq=False)
class VirtualServer:
    """A server like vLLM, which batches requests. A step's time depends on the number in flight."""

    clock: Clock
    codec: ChatCodec
    generator: np.random.Generator
    step_s: Callable[[int, int], float]
    """Seconds of a step by draft tokens and requests in flight."""
    accepted: Sequence[float] = ()
    """The chance that a draft token is accepted, by position, if those before it are."""
    table: LoadTable = PLAIN_TABLE
    """Draft tokens by requests in flight."""
    find_share: float = 1.0
    """The share of steps in which the method finds a draft."""
    is_drafting: Callable[[int], bool] = lambda number: True
    """True if the method drafts for the request with this number, counted from 0."""
    has_counters: bool = True
    has_counts: bool = True
    """True if the server identifies itself as vLLM and its answers have counts."""
    slowness: Callable[[float], float] = lambda now_s: 1.0
    """The factor of the machine on a step's time, as a function of the time."""
    noise: float = 0.0
    """The standard deviation of the logarithm of a step's time."""
    refused_share: float = 0.0
    """The share of attempts that the server refuses at the start."""
    failed_share: float = 0.0
    """The share of requests that fail."""
    num_requests: int = 0
    num_active: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    """The server's counters."""

    def page(self, path: str) -> str:
        """The text at a path. Raises RequestFailed without such a path."""
        if path == "/v1/models":
            return json.dumps({"data": [{"id": "tiny", "max_model_len": 4096}]})
        if path == "/version" and self.has_counts:
            return json.dumps({"version": "0.33.0"})
        if path == "/metrics" and self.has_counters:
            totals = {"generation_tokens_total": 0, **self.totals}
            return "".join(f"vllm:{name} {count}\n" for name, count in totals.items())
        raise RequestFailed("The server answered with HTTP status 404: not found")

    async def answer(
        self, protocol: StreamProtocol, body: Mapping[str, Any], budget: int
    ) -> Answer:
        """The answer to an attempt. Raises RequestFailed without an answer."""
        if self.generator.random() < self.refused_share:
            raise RequestFailed("The server answered with HTTP status 429: busy", is_refused=True)
        number = self.num_requests
        self.num_requests += 1
        if number and self.generator.random() < self.failed_share:  # the first one is the probe
            raise RequestFailed("The server answered with HTTP status 500: boom")
        self.num_active += 1
        try:
            return await self._stream(protocol, body["prompt"], budget, number)
        finally:
            self.num_active -= 1

    async def _stream(
        self, protocol: StreamProtocol, prompt: Sequence[int], budget: int, number: int
    ) -> Answer:
        reader = AnswerReader(protocol, sent=self.clock.now_s, budget=budget)
        ids = self._ids(prompt)[:budget]
        drafted: list[int] = []
        accepted: list[int] = []
        await self._sleep(2 * self.step_s(0, self.num_active))  # the prefill
        num_sent = 1
        self._send(reader, ids[:1])
        while num_sent < len(ids):
            num_tokens = self.table.at(self.num_active) if self.is_drafting(number) else 0
            num_tokens *= self.generator.random() < self.find_share
            await self._sleep(self.step_s(num_tokens, self.num_active))
            is_accepted = self.generator.random(num_tokens) < self.accepted[:num_tokens]
            num_accepted = int(np.cumprod(is_accepted).sum())
            if num_tokens:
                drafted.append(num_tokens)
                accepted.append(num_accepted)
            self._send(reader, ids[num_sent : num_sent + num_accepted + 1])
            num_sent += num_accepted + 1
        self._count(len(ids), accepted)
        has_end = ids[-1] in self.codec.eos_ids
        choice = {"text": "", "finish_reason": "stop" if has_end else "length"}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        last: dict[str, Any] = {"choices": [choice], "usage": usage}
        if self.has_counts and self._is_speculating:
            last["metrics"] = {
                "speculative_decoding": {
                    "num_spec_steps": len(drafted),
                    "num_draft_tokens": sum(drafted),
                    "num_accepted_draft_tokens": sum(accepted),
                    "per_step_accepted": accepted,
                    "per_step_drafted": drafted,
                }
            }
        self._feed(reader, last)
        return reader.finish()

    @property
    def _is_speculating(self) -> bool:
        return any(start.num_tokens for start in self.table.starts)

    def _ids(self, prompt: Sequence[int]) -> list[int]:
        """The answer to a prompt, which is the same from every server."""
        words = self.codec.token_ids(WORDS)
        generator = np.random.default_rng(prompt)
        num_words = generator.integers(16, 48)
        assert self.codec.end_id is not None
        return [*generator.choice(words, num_words).tolist(), self.codec.end_id]

    async def _sleep(self, seconds: float) -> None:
        factor = float(np.exp(self.generator.normal(0, self.noise)))
        await asyncio.sleep(seconds * factor * self.slowness(self.clock.now_s))

    def _send(self, reader: AnswerReader, ids: Sequence[int]) -> None:
        choice: dict[str, Any] = {"text": self.codec.text(ids)}
        if self.has_counts:
            choice["token_ids"] = ids
        self._feed(reader, {"choices": [choice]})

    def _feed(self, reader: AnswerReader, event: Mapping[str, Any]) -> None:
        reader.feed(b"data: " + json.dumps(event).encode() + b"\n\n", self.clock.now_s)

    def _count(self, num_tokens: int, accepted: Sequence[int]) -> None:
        grown = {"generation_tokens_total": num_tokens}
        if self._is_speculating:
            grown["spec_decode_num_drafts_total"] = len(accepted)
            grown["spec_decode_num_accepted_tokens_total"] = sum(accepted)
        for name, count in grown.items():
            self.totals[name] = self.totals.get(name, 0) + count


class _VirtualClient(Client):
    """A client of a server in this process."""

    def __init__(self, server: VirtualServer, root: str, request_s: float | None) -> None:
        super().__init__(root, request_s=request_s)
        self._server = server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None: ...

    async def get(self, path: str) -> str:
        return self._server.page(path)

    async def _stream(self, protocol: StreamProtocol, body: bytes, budget: int) -> Answer:
        return await self._server.answer(protocol, json.loads(body), budget)


@contextmanager
def virtual_servers(clock: Clock, servers_by_url: Mapping[str, VirtualServer]) -> Iterator[None]:
    """Let runs reach these servers by their addresses, in simulated time."""

    def client_of(root: str, *, request_s: float | None = None) -> Client:
        return _VirtualClient(servers_by_url[root], root, request_s)

    with ExitStack() as stack:
        for module in (backend, blocks, client, counters, servers):
            stack.enter_context(patch.object(module, "perf_counter", clock.read))
        for module in (running_setup, servers):
            stack.enter_context(patch.object(module, "Client", client_of))
        stack.enter_context(patch.object(asyncio.events, "new_event_loop", clock.loop))
        yield
