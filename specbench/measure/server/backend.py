"""The servers of a run's methods, open: an event loop, and a client for each server.

Must not know prompts, the order of requests, nor reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol, Self, TypeVar

from specbench.errors import SpecbenchError
from specbench.log.backend import BlockHeader, ServerHeader
from specbench.measure.base import BackendInfo, Log, Plan, Progress
from specbench.measure.server.answer import Answer, RequestFailed
from specbench.measure.server.blocks import BlockRunner
from specbench.measure.server.client import Client
from specbench.measure.server.counters import read_counters
from specbench.measure.server.find import FoundServer
from specbench.measure.server.stream import ChatRequest
from specbench.types import Record, Request

WARM_UP_TOKENS = 32
DEATH_S = 3.0
"""Seconds after which a process that has not ended is taken for one that hangs."""
_POLL_S = 0.02

T = TypeVar("T")


class OpenServer:
    """A server with its client. `death` says how a process that we started ended.

    A server that is started again is another one, which is not warm.
    """

    is_warm = False

    def __init__(
        self, client: Client, found: FoundServer, death: Callable[[], str] | None = None
    ) -> None:
        self.client, self.found, self._death = client, found, death
        self._known_by: float | None = None

    def death(self) -> str:
        """The end of its process; empty while it runs, and for a server that we did not start."""
        return self._death() if self._death else ""

    async def wait_for_death(self) -> str:
        """The end of its process, for a server that no longer answers; empty if it still runs.

        That a server does not answer is known earlier than that its process has ended. The wait is
        the same for all requests.
        """
        if self._death is None:
            return ""
        self._known_by = self._known_by or perf_counter() + DEATH_S
        while not self.death() and perf_counter() < self._known_by:
            await asyncio.sleep(_POLL_S)
        return self.death()

    async def complete(self, ask: ChatRequest) -> Answer:
        """The answer to a request. Raises RequestFailed if there is none."""
        return await self.client.complete(self.found.protocol, self.found.model, ask)

    async def counters(self) -> dict[str, float]:
        """The server's counters now; empty if it has none."""
        if not self.found.has_counters:
            return {}
        try:
            return read_counters(await self.client.get("/metrics"))
        except RequestFailed:
            return {}


class ServerSource(Protocol):
    """The servers of methods: some run already, some are started when their turn comes."""

    is_one_at_a_time: bool

    async def open(self, method: str) -> OpenServer:
        """The server of a method, answering. Raises SpecbenchError if it does not."""
        ...

    async def close(self) -> None: ...
    def describe(self) -> dict[str, ServerHeader]: ...


class ServerBackend:
    """The servers of a source. `run` runs a coroutine in the event loop of their clients."""

    def __init__(self, source: ServerSource, num_at_once: int) -> None:
        self.source, self._num_at_once = source, num_at_once
        self._requests: Sequence[Request] = ()
        self.blocks: list[BlockHeader] = []

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        self._runner.get_loop()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._end_requests()
            self.run(self.source.close())
        finally:
            self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine."""
        return self._runner.run(work)

    def _end_requests(self) -> None:
        """Cancel what an interrupt left under way."""
        loop = self._runner.get_loop()
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            with suppress(KeyboardInterrupt):  # a task raises the same one again
                loop.run_until_complete(asyncio.wait(tasks))

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        return BackendInfo(servers=self.source.describe(), blocks=tuple(self.blocks))

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Keep the requests: each server is warmed up when it is opened."""
        self._requests = requests

    def runner(self, plan: Plan, log: Log, progress: Progress) -> BlockRunner:
        return BlockRunner(plan, self, log, progress, plan.setup.codec, block_done=log.changed)

    async def open(self, method: str) -> OpenServer:
        """The server of a method, answering and warmed up.

        Raises:
            SpecbenchError: it does not answer.
        """
        server = await self.source.open(method)
        if not server.is_warm:
            await self._warm_up(server)
            server.is_warm = True
        return server

    async def _warm_up(self, server: OpenServer) -> None:
        """Send every request once, the usual one as often as there are requests at once."""
        for i, request in enumerate(self._requests):
            short = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
            ask = ChatRequest(short, [{"role": "user", "content": "Hello"}])
            number = self._num_at_once if i == 0 else 1
            with suppress(RequestFailed, ExceptionGroup):  # samples will fail too
                async with asyncio.TaskGroup() as group:
                    for _ in range(number):
                        group.create_task(server.complete(ask))


class RunningServers:
    """Servers that run already, by method."""

    is_one_at_a_time = False

    def __init__(self, servers: Mapping[str, FoundServer], *, request_s: float) -> None:
        self._found, self._request_s = servers, request_s
        self._open: dict[str, OpenServer] = {}
        self._stack = AsyncExitStack()

    async def open(self, method: str) -> OpenServer:
        if method not in self._open:
            found = self._found[method]
            client = Client(found.root, request_s=self._request_s)
            self._open[method] = OpenServer(await self._stack.enter_async_context(client), found)
        server = self._open[method]
        await server.client.check_alive()
        if server.client.dead_reason:
            raise SpecbenchError(server.client.dead_reason)
        return server

    async def close(self) -> None:
        await self._stack.aclose()

    def describe(self) -> dict[str, ServerHeader]:
        return {method: server_header(found) for method, found in self._found.items()}


def server_header(found: FoundServer, command: Iterable[str] = ()) -> ServerHeader:
    """A server's part of the header."""
    return ServerHeader(
        url=found.root,
        software=found.software,
        model=found.model,
        protocol=found.protocol.name,
        sends_token_ids=found.sends_token_ids,
        command=tuple(command),
    )
