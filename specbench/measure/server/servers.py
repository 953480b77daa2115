"""The servers of a run's methods: those that run already, and those that are started in turn."""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from msgspec.structs import replace as replace_header

from specbench.errors import SpecbenchError, UserError
from specbench.log.backend import ServerHeader
from specbench.measure.server.client import Client
from specbench.measure.server.engine import Launch
from specbench.measure.server.find import FoundServer
from specbench.measure.server.process import ServerProcess, free_port
from specbench.measure.server.stream import Answer, ChatRequest, RequestFailed

DEATH_S = 3.0
"""Seconds after which a process that has not ended is taken for one that hangs."""
_POLL_S = 0.02
"""Seconds between looks at a process that may have ended."""
_LATEST = 64
"""Prompts that are kept of a server."""
START_S = 900.0
"""Seconds that an engine has to load and compile a model."""
MOST_STARTS = 2
"""Starts in a row that may end badly: an engine that dies is started once more."""
_READY_POLL_S = 0.2
"""Seconds between questions to a server that is starting."""
_FOLDERS = re.compile(r"""(?<![^\s"'=,])/(?:[^/"',]+/)+(?=[^/"',])""")
"""The folders of an absolute path in an argument."""


@dataclass(slots=True, eq=False)
class OpenServer:
    """A server with its client. One that was started again is a new one."""

    client: Client
    """Sends requests to the server."""
    found: FoundServer
    """What the server is, and the form of requests that it takes."""
    end: Callable[[], str] | None = None
    """Says how its process ended; empty while it runs. None if we did not start it."""
    draft_length: int = 0
    """The most tokens of a draft that it was asked for; 0 if unknown."""
    is_warm: bool = False
    """It has answered the requests of the warm-up."""
    num_untimed_drafts: int = 0
    """Drafts that it counted before the first timed request."""
    sent_prompts: deque[tuple[int, ...]] = field(default_factory=partial(deque, maxlen=_LATEST))
    """The prompts of its latest requests."""
    _death_deadline: float | None = None
    """Time at which its process counts as hanging; None until it no longer answers."""

    def death(self) -> str:
        """The end of its process; empty while it runs, and for a server that we did not start."""
        return self.end() if self.end else ""

    async def wait_for_death(self) -> str:
        """The end of its process, for a server that no longer answers; empty if it still runs.

        Connections fail before the process has ended, so this waits for its end. The wait is
        the same for all requests.
        """
        if self.end is None:
            return ""
        if self._death_deadline is None:
            self._death_deadline = perf_counter() + DEATH_S
        while not self.death() and perf_counter() < self._death_deadline:
            await asyncio.sleep(_POLL_S)
        return self.death()

    async def complete(self, ask: ChatRequest) -> Answer:
        """The answer to a request. Raises RequestFailed if there is none."""
        return await self.client.complete(self.found.protocol, self.found.header.model, ask)

    async def counters(self) -> dict[str, float]:
        """The server's counters now; empty if it has none."""
        return await self.client.counters() if self.found.has_counters else {}


class RunningServers:
    """Servers that run already, by method."""

    is_one_at_a_time = False

    def __init__(self, servers: Mapping[str, FoundServer], *, request_s: float | None) -> None:
        self._servers = servers
        self._request_s = request_s
        self._open_servers: dict[str, OpenServer] = {}
        self._stack = AsyncExitStack()

    async def open(self, method: str) -> OpenServer:
        """The server of a method, given by its label, with the client that asks it.

        `_servers` has what each server is, by method. `_open_servers` has those with a client, and
        `_stack` ends the clients. A request may take `_request_s` seconds (None: the default).

        Raises:
            SpecbenchError: it does not answer.
        """
        if method not in self._open_servers:
            running = self._servers[method]  # its address, and what it is
            client = Client(running.header.url, request_s=self._request_s)
            await self._stack.enter_async_context(client)  # until the servers are closed
            self._open_servers[method] = OpenServer(client, running)
        server = self._open_servers[method]
        # Asks it for its models; a reason if it is dead, else None.
        if dead_reason := await server.client.check_alive():
            raise SpecbenchError(dead_reason)
        return server

    async def end_pass(self) -> None:
        """Nothing: what these servers remember is not ours to end."""

    async def close(self) -> None:
        """End the connections. The servers go on."""
        await self._stack.aclose()

    def describe(self) -> dict[str, ServerHeader]:
        """The servers' part of the header, by method."""
        return {method: server.header for method, server in self._servers.items()}


@dataclass(slots=True, eq=False)
class StartedServers:
    """Servers of methods, started one at a time when their turn comes."""

    launches: Mapping[str, Launch]
    """The servers to start, by method."""
    command: Callable[[Launch], Sequence[str]]
    """Makes the command line of a server."""
    variables: Mapping[str, str]
    """Environment variables that the engine needs, unless the user has set them."""
    find: Callable[[Client], Awaitable[FoundServer]]
    """Asks a server what it is, as soon as it answers."""
    folder: Path
    """The folder of the logs."""
    wheel: str = ""
    """The package with the engine, if one has it: the server may not know its version."""
    request_s: float | None = None
    """Seconds that a request may take; None for the default."""
    is_one_at_a_time = True
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Ends the server that runs, with its client and its files."""
    _method: str = ""
    """The method of the server that was opened last; empty at the beginning of a pass."""
    _server: OpenServer | None = None
    """The server that runs."""
    _num_starts: int = 0
    """Starts of the server of `_method` since a block of it ended well."""
    _failure: str = ""
    """The reason why it is not started again."""
    _headers: dict[str, ServerHeader] = field(default_factory=dict)
    """The servers' part of the header, by method, of those that were started."""

    async def open(self, method: str) -> OpenServer:
        """The server of a method, started unless it runs. Only one server runs at a time.

        Called before each block of requests of a method. `_server` is the one that runs (None:
        none does), `_method` the method opened last (empty when a pass begins).
        `_num_starts` counts the starts of its server in a row, without a block that ended well
        between; MOST_STARTS are allowed. `_failure` is the reason why it is not started again.

        Raises:
            SpecbenchError: it did not start, or died more than once.
        """
        server = self._server
        if method != self._method:
            self._num_starts = 0
        # It runs, and answers: `death` and `check_alive` give a reason if not.
        elif server and not server.death() and not await server.client.check_alive():
            self._num_starts = 1  # its last block ended well: it may die, and start, once more
            return server
        if self._num_starts >= MOST_STARTS:
            raise SpecbenchError(self._failure)
        self._num_starts += 1
        await self.close()  # ends the server that ran before
        self._method = method
        try:
            self._server = await self._start(method)
        except (SpecbenchError, OSError) as error:
            self._failure = str(error)
            self._num_starts = MOST_STARTS  # it is not tried again
            await self.close()
            raise SpecbenchError(self._failure) from error
        # For the next call, if the server dies again.
        self._failure = f"The server of {method} died {MOST_STARTS} times."
        return self._server

    async def end_pass(self) -> None:
        """Let no server take what it remembers into the next pass."""
        self._method = ""
        await self.close()

    def describe(self) -> dict[str, ServerHeader]:
        """The servers' part of the header, by method."""
        return dict(self._headers)

    async def close(self) -> None:
        """End the server that runs, if any."""
        self._server = None
        await self._stack.aclose()

    async def _start(self, method: str) -> OpenServer:
        """Start the server of a method, and wait until it answers.

        `launches` has the model and the draft weights of each method, by its label; `command` makes
        a command line of them, `find` asks the server what it is. `_stack` ends what is started.
        The description of the server goes into `_headers`, for the header of the run.

        Raises:
            SpecbenchError: it ended, did not answer in time, or is not the server of the model.
        """
        port = free_port()
        # For files that the engine needs in its own layout.
        scratch = self._stack.enter_context(TemporaryDirectory(prefix="specbench-"))
        launch = replace(self.launches[method], port=port, scratch=Path(scratch))
        command = self.command(launch)
        # A label such as `eagle:num_tokens=5` as the name of a file.
        log_name = "".join(letter if letter.isalnum() else "-" for letter in method)
        # `variables` are environment variables that the engine needs, `folder` is for the logs.
        process = ServerProcess(command, self.variables, self.folder / f"{log_name}.log")
        self._stack.push_async_callback(asyncio.to_thread, process.stop)
        client = Client(f"http://127.0.0.1:{port}", request_s=self.request_s)
        await self._stack.enter_async_context(client)
        try:
            await _wait_until_ready(client, process)
            found_server = await self.find(client)
        except UserError as error:
            # With the end of its process in words; empty if it runs.
            raise SpecbenchError(f"{error.message} {process.death()}".strip()) from error
        software = found_server.header.software  # name and version, or "-unknown" in its place
        if self.wheel:  # the package with the engine, which may not know its version itself
            software = f"{software.removesuffix('-unknown')} ({self.wheel})"
        self._headers[method] = replace_header(
            found_server.header,
            software=software,
            command=tuple(without_folders(argument) for argument in command),
        )
        # `death` says how its process ended; `num_tokens` are the most of a draft, 0 if unknown.
        return OpenServer(client, found_server, end=process.death, draft_length=launch.num_tokens)


def without_folders(argument: str) -> str:
    """An argument of a command, with paths cut to the names of files."""
    return _FOLDERS.sub("", argument)


async def _wait_until_ready(client: Client, process: ServerProcess) -> None:
    """Wait until the server answers, for START_S seconds at most.

    `client` sends requests to the server, which runs in `process`.

    Raises:
        SpecbenchError: its process ended, or it did not answer in time.
        RequestFailed: the server asks for another key than SPECBENCH_API_KEY.
    """
    began = perf_counter()
    while perf_counter() - began < START_S:
        if death := process.death(" while it started"):  # a sentence; empty while it runs
            raise SpecbenchError(death)
        try:
            await client.get("/v1/models")
        except RequestFailed as failure:
            if failure.wants_key:  # it is ready, and SPECBENCH_API_KEY is not its key
                raise
            await asyncio.sleep(_READY_POLL_S)  # seconds between questions
        else:
            return
    raise SpecbenchError(
        f"The engine did not answer within {START_S:g} s. Its last lines: {process.last_lines()}"
    )


ServerSource = RunningServers | StartedServers
"""The servers of methods: some run already, some are started when their turn comes."""
