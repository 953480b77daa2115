"""Hold the running servers of a run's methods, each with a client that sends it requests."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Protocol

from specbench.errors import SpecbenchError
from specbench.log.backend import Arrangement, ServerHeader
from specbench.measure.server.client import Client
from specbench.measure.server.find import FoundServer
from specbench.measure.server.server_meter import local_process
from specbench.measure.server.stream import Answer, ChatRequest

DEATH_S = 3.0
"""Seconds after which a process that no longer answers, but has not ended, counts as hanging."""
_POLL_S = 0.02
"""Seconds between two checks of a process."""
_LATEST = 64
"""The number of a server's latest prompts that are kept."""


@dataclass(slots=True, eq=False)
class OpenServer:
    """A server with its client. A server that is started again gets a new `OpenServer`."""

    client: Client
    """Sends requests to the server."""
    properties: FoundServer
    """The description of the server, and the protocol of its requests."""
    end: Callable[[], str] | None = None
    """Returns a sentence about how its process ended, empty while it runs. None if we did not start
    the server.
    """
    draft_length: int = 0
    """The most tokens of a draft that it was told to make; 0 if unknown."""
    process_id: int = 0
    """The id of its process, which may have descendants; 0 if unknown, or on another machine."""
    is_warm: bool = False
    """True if it has answered the requests of the warm-up."""
    num_untimed_drafts: int = 0
    """Drafts that it counted before the first timed request."""
    sent_prompts: deque[tuple[int, ...]] = field(default_factory=partial(deque, maxlen=_LATEST))
    """The prompts of its latest requests."""
    _death_deadline: float | None = None
    """Time of `perf_counter` at which its process counts as hanging; None while it answers."""

    def death(self) -> str:
        """A sentence about how its process ended.

        It is empty while the process runs, and for a server that we did not start.
        """
        return self.end() if self.end else ""

    async def wait_for_death(self) -> str:
        """Wait for the end of a server that no longer answers. Returns the same text as `death`.

        Connections fail before the process has ended. The wait takes DEATH_S seconds at most. All
        requests share one deadline.
        """
        if self.end is None:
            return ""
        if self._death_deadline is None:
            self._death_deadline = perf_counter() + DEATH_S
        while not self.death() and perf_counter() < self._death_deadline:
            await asyncio.sleep(_POLL_S)
        return self.death()

    async def complete(self, ask: ChatRequest) -> Answer:
        """The answer to a request. Raises RequestFailed without an answer."""
        return await self.client.complete(
            self.properties.protocol, self.properties.header.model, ask
        )

    async def counters(self) -> dict[str, float]:
        """The server's counters now; empty if it has none."""
        return await self.client.counters() if self.properties.has_counters else {}


class RunningServers:
    """The servers of a run's methods that were already running before it."""

    is_one_at_a_time = False
    arrangement = None

    def __init__(self, servers: Mapping[str, FoundServer], *, request_s: float | None) -> None:
        self._servers = servers  # what each server is, by its method's label
        self._request_s = request_s  # seconds that a request may take; None for the default
        self._open_servers: dict[str, OpenServer] = {}  # servers with a client, by label
        self._stack = AsyncExitStack()  # closes the clients

    async def open(self, method: str) -> OpenServer:
        """The server of a method with its client, which is made at the first call.

        `method` is the method's label.

        Raises:
            SpecbenchError: the server does not answer.
        """
        if method not in self._open_servers:
            running = self._servers[method]  # its address, and what it is
            client = Client(running.header.url, request_s=self._request_s)
            await self._stack.enter_async_context(client)  # ended by `close`
            process_id = local_process(running.header.url)  # 0: not on this machine, or unknown
            self._open_servers[method] = OpenServer(client, running, process_id=process_id)
        server = self._open_servers[method]
        # `check_alive` returns None if the server answers (even that it is busy), else the reason.
        if dead_reason := await server.client.check_alive():
            raise SpecbenchError(dead_reason)
        return server

    def process_ids(self) -> dict[str, int]:
        """The process ids of the servers on this machine that were opened, by method."""
        return {
            method: server.process_id
            for method, server in self._open_servers.items()
            if server.process_id
        }

    async def end_pass(self) -> None:
        """Do nothing: these servers belong to the user, and keep what they remember."""

    async def close(self) -> None:
        """End the connections. The servers keep running."""
        await self._stack.aclose()

    def describe(self) -> dict[str, ServerHeader]:
        """The servers' part of the header, by method."""
        return {method: server.header for method, server in self._servers.items()}


class ServerSource(Protocol):
    """The servers of a run's methods: servers that are already running, or that the run starts."""

    @property
    def is_one_at_a_time(self) -> bool:
        """True if only one of the servers is up at a time."""

    @property
    def arrangement(self) -> Arrangement | None:
        """The decision to run servers side by side or in turn; None if there was no choice."""

    async def open(self, method: str) -> OpenServer:
        """The server of a method. Raises SpecbenchError if it does not answer."""

    async def end_pass(self) -> None:
        """Make servers that the run started forget earlier requests."""

    async def close(self) -> None:
        """Close the connections, and end servers that the run started."""

    def describe(self) -> dict[str, ServerHeader]:
        """The servers' part of the header, by method."""

    def process_ids(self) -> dict[str, int]:
        """The process ids of servers on this machine, by method."""
