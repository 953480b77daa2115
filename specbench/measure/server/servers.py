"""The servers of a run's methods: those that run already, and those that are started in turn.

A server's process: started under a keeper that ends it whatever happens to this program.
"""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from msgspec.structs import replace as replace_header

from specbench.errors import SpecbenchError, UserError, printable
from specbench.log.backend import ServerHeader
from specbench.machine.threads import without_waiting
from specbench.measure.server.client import Client, FoundServer
from specbench.measure.server.engine import Launch
from specbench.measure.server.stream import Answer, ChatRequest, RequestFailed

END_S = 30.0
"""Seconds that the keeper has to end a server."""
_KEEPER = Path(__file__).with_name("keeper.py")
_NUM_LINES, _MOST_BYTES = 5, 64 * 2**10
DEATH_S = 3.0
"""Seconds after which a process that has not ended is taken for one that hangs."""
_POLL_S = 0.02
START_S = 900.0
"""Seconds that an engine has to load and compile a model."""
MOST_STARTS = 2
"""Starts in a row that may end badly: an engine that dies is started once more."""
_READY_POLL_S = 0.2
_FOLDERS = re.compile(r"""(?<![^\s"'=,])/(?:[^/"',]+/)+(?=[^/"',])""")
"""The folders of an absolute path in an argument."""


class ServerProcess:
    """A running command. Its output goes to `log`."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str], log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"$ {' '.join(command)}\n".encode())
            self._start = file.tell()
        self._keeper = subprocess.Popen(
            [sys.executable, str(_KEEPER), str(log), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**settings, **without_waiting()},
            start_new_session=True,  # Ctrl-C is for this program, which then ends the server
        )

    def stop(self) -> None:
        """End the server and everything that it started."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(END_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()

    def last_lines(self) -> str:
        """The last lines of its output, as one text."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, size - _MOST_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        kept = [printable(line.strip()) for line in lines if line.strip()]
        return " | ".join(kept[-_NUM_LINES:]) or "it printed nothing"

    def death(self, when: str = "") -> str:
        """Its end in words; empty while it runs."""
        if (status := self._keeper.poll()) is None:
            return ""
        ended = f"The engine ended with status {status}{when}."
        return f"{ended} Its last lines: {self.last_lines()}"


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True, eq=False)
class OpenServer:
    """A server with its client. `end` says how a process that we started ended.

    `draft_length` is the most tokens of a draft that it was asked for; 0 if unknown. A server
    that was started again is a new one, and not warm.
    """

    client: Client
    found: FoundServer
    end: Callable[[], str] | None = None
    draft_length: int = 0
    is_warm: bool = False
    _known_by: float | None = None

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
        self._known_by = self._known_by or perf_counter() + DEATH_S
        while not self.death() and perf_counter() < self._known_by:
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
        self._found, self._request_s = servers, request_s
        self._open: dict[str, OpenServer] = {}
        self._stack = AsyncExitStack()

    async def open(self, method: str) -> OpenServer:
        if method not in self._open:
            found = self._found[method]
            client = Client(found.header.url, request_s=self._request_s)
            self._open[method] = OpenServer(await self._stack.enter_async_context(client), found)
        server = self._open[method]
        if dead_reason := await server.client.check_alive():
            raise SpecbenchError(dead_reason)
        return server

    async def end_pass(self) -> None: ...

    async def close(self) -> None:
        await self._stack.aclose()

    def describe(self) -> dict[str, ServerHeader]:
        return {method: found.header for method, found in self._found.items()}


@dataclass(slots=True, eq=False)
class StartedServers:
    """Servers of methods, started one at a time by `command`, with `settings` as variables.

    `find` asks a server what it is, as soon as it answers. The logs go to `folder`. `wheel`
    names the package with the engine, if one has it: the server may not know its version.
    """

    launches: Mapping[str, Launch]
    command: Callable[[Launch], Sequence[str]]
    settings: Mapping[str, str]
    find: Callable[[Client], Awaitable[FoundServer]]
    folder: Path
    wheel: str = ""
    request_s: float | None = None
    is_one_at_a_time = True
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _method: str = ""
    _server: OpenServer | None = None
    _num_failures: int = 0
    _reason: str = ""
    _headers: dict[str, ServerHeader] = field(default_factory=dict)

    async def open(self, method: str) -> OpenServer:
        """The server of a method, started unless it runs.

        Raises:
            SpecbenchError: it did not start, or died more than once.
        """
        server = self._server
        if method != self._method:
            self._num_failures = 0
        elif server and not server.death() and not await server.client.check_alive():
            self._num_failures = 1  # its last block ended well
            return server
        if self._num_failures >= MOST_STARTS:
            raise SpecbenchError(self._reason)
        self._num_failures += 1
        await self.close()
        self._method = method
        try:
            self._server = await self._started(method)
        except (SpecbenchError, OSError) as error:
            self._reason, self._num_failures = str(error), MOST_STARTS
            await self.close()
            raise SpecbenchError(self._reason) from error
        self._reason = f"The server of {method} died {MOST_STARTS} times."
        return self._server

    async def end_pass(self) -> None:
        """Let no server take what it remembers into the next pass."""
        self._method = ""
        await self.close()

    def describe(self) -> dict[str, ServerHeader]:
        return dict(self._headers)

    async def close(self) -> None:
        """End the server that runs, if any."""
        self._server = None
        await self._stack.aclose()

    async def _started(self, method: str) -> OpenServer:
        port = free_port()
        name = "".join(sign if sign.isalnum() else "-" for sign in method)
        scratch = self._stack.enter_context(TemporaryDirectory(prefix="specbench-"))
        launch = replace(self.launches[method], port=port, scratch=Path(scratch))
        command = self.command(launch)
        process = ServerProcess(command, self.settings, self.folder / f"{name}.log")
        self._stack.push_async_callback(asyncio.to_thread, process.stop)
        client = Client(f"http://127.0.0.1:{port}", request_s=self.request_s)
        await self._stack.enter_async_context(client)
        try:
            await _until_ready(client, process)
            found = await self.find(client)
        except UserError as error:
            raise SpecbenchError(f"{error.message} {process.death()}".strip()) from error
        software = found.header.software
        if self.wheel:
            software = f"{software.removesuffix('-unknown')} ({self.wheel})"
        self._headers[method] = replace_header(
            found.header, software=software, command=tuple(map(without_folders, command))
        )
        return OpenServer(client, found, process.death, launch.num_tokens)


def without_folders(argument: str) -> str:
    """An argument of a command, with paths cut to the names of files."""
    return _FOLDERS.sub("", argument)


async def _until_ready(client: Client, process: ServerProcess) -> None:
    """Wait until the server answers.

    Raises:
        SpecbenchError: its process ended, or it did not answer in time.
    """
    began = perf_counter()
    while perf_counter() - began < START_S:
        if death := process.death(" while it started"):
            raise SpecbenchError(death)
        try:
            await client.get("/v1/models")
        except RequestFailed as failure:
            if failure.wants_key:  # it is ready, and SPECBENCH_API_KEY is not its key
                raise
            await asyncio.sleep(_READY_POLL_S)
        else:
            return
    raise SpecbenchError(
        f"The engine did not answer within {START_S:g} s. Its last lines: {process.last_lines()}"
    )


ServerSource = RunningServers | StartedServers
"""The servers of methods: some run already, some are started when their turn comes."""
