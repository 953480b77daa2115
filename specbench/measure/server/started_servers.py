"""Start servers for a run's methods, all together or one at a time, and end them."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from msgspec.structs import replace as replace_header

from specbench.errors import SpecbenchError, UserError
from specbench.log.backend import Arrangement, ServerHeader
from specbench.measure.server.client import Client
from specbench.measure.server.engine import Launch
from specbench.measure.server.find import FoundServer
from specbench.measure.server.process import ServerProcess, free_port
from specbench.measure.server.servers import OpenServer
from specbench.measure.server.stream import RequestFailed

START_S = 900.0
"""Seconds that an engine may take to load and compile a model."""
MOST_STARTS = 2
"""The most starts of a server in a row: an engine that dies is started once more."""
_READY_POLL_S = 0.2
"""Seconds between two requests to a server that is starting."""
_FOLDERS = re.compile(r"""(?<![^\s"'=,])/(?:[^/"',]+/)+(?=[^/"',])""")
"""Matches the folders of an absolute path in an argument."""


@dataclass(slots=True, eq=False)
class _ServerState:
    """The server of a method, if it runs, and how often it was started."""

    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Ends the server, closes its client and removes its files."""
    server: OpenServer | None = None
    """The running server; None if it does not run."""
    num_starts: int = 0
    """Starts in a row. The count goes back to 1 when the server has survived a block."""
    failure: str = ""
    """The reason to give when it is not started again."""

    async def close(self) -> None:
        """End the server, if it runs."""
        self.server = None
        await self.stack.aclose()


@dataclass(slots=True, eq=False)
class StartedServers:
    """The servers that the run starts for its methods, all together or each when its turn comes."""

    launches: Mapping[str, Launch]
    """The servers to start, by method."""
    command: Callable[[Launch], Sequence[str]]
    """Makes the words of a server's command line."""
    variables: Mapping[str, str]
    """Environment variables that the engine needs, unless the user has set them."""
    find: Callable[[Client], Awaitable[FoundServer]]
    """Asks a server what it is, as soon as it answers."""
    folder: Path
    """The folder of the logs."""
    wheel: str = ""
    """The package that has the engine, with its version, or "". The server may not know this
    version.
    """
    request_s: float | None = None
    """Seconds that a request may take; None for the default."""
    arrangement: Arrangement | None = None
    """The decision to run servers side by side or one at a time; None for a single server."""
    _states: dict[str, _ServerState] = field(default_factory=dict)
    """The servers by method, as far as they were started in this pass."""
    _headers: dict[str, ServerHeader] = field(default_factory=dict)
    """The headers of the servers that were started, by method."""

    @property
    def is_one_at_a_time(self) -> bool:
        """True if one server is up at a time. If not, all are up from the start of each pass."""
        return self.arrangement is None or not self.arrangement.is_side_by_side

    async def open(self, method: str) -> OpenServer:
        """The server of a method, started unless it runs.

        This is called before each block of a method's requests. If the servers run side by side,
        the first block of a pass starts all of them. If they take turns, the server that ran before
        is ended.

        Raises:
            SpecbenchError: the server did not start, or died more than once.
        """
        if self.is_one_at_a_time and method not in self._states:
            await self.end_pass()
        elif not self._states:
            for launched_method in self.launches:
                with suppress(SpecbenchError):  # raised again at the method's own first block
                    await self._open(launched_method)
        return await self._open(method)

    async def _open(self, method: str) -> OpenServer:
        """The server of a method, started unless it runs and answers.

        A server that died is started again, but not after MOST_STARTS deaths in a row. A server
        that still answers before a block (a group of requests) survived the last block, so deaths
        are counted anew. A start that failed is not repeated in the same pass.

        Raises:
            SpecbenchError: the server did not start, or died MOST_STARTS times in a row.
        """
        state = self._states.setdefault(method, _ServerState())
        server = state.server
        # `death` and `check_alive` return the reason if the server is gone, else "" and None.
        if server and not server.death() and not await server.client.check_alive():
            state.num_starts = 1  # it survived the last block: count from its start again
            return server
        if state.num_starts >= MOST_STARTS:
            raise SpecbenchError(state.failure)
        state.num_starts += 1
        await state.close()  # ends a server that no longer answers
        try:
            state.server = await self._start(method, state.stack)
        except (SpecbenchError, OSError) as error:
            state.failure = str(error)
            state.num_starts = MOST_STARTS  # so that it is not started again
            await state.close()
            raise SpecbenchError(state.failure) from error
        # The reason to give in a later call, if this server dies and may not be started again.
        state.failure = f"The server of {method} died {MOST_STARTS} times."
        return state.server

    async def end_pass(self) -> None:
        """End the servers, so that the next pass begins without what they remember."""
        await self.close()

    def describe(self) -> dict[str, ServerHeader]:
        """The servers' part of the header, by method."""
        return dict(self._headers)

    def process_ids(self) -> dict[str, int]:
        """The process ids of the servers that run, by method."""
        return {
            method: state.server.process_id
            for method, state in self._states.items()
            if state.server
        }

    async def close(self) -> None:
        """End the servers that run."""
        states = [*self._states.values()]
        self._states = {}
        await asyncio.gather(*(state.close() for state in states))

    async def _start(self, method: str, stack: AsyncExitStack) -> OpenServer:
        """Start the server of a method, and wait until it answers.

        Closing `stack` ends what is started here. The server's header is put into `_headers`.

        Raises:
            SpecbenchError: the server ended, did not answer in time, refuses the key, or does not
                serve the model.
        """
        port = free_port()
        # For files that the engine needs in its own layout.
        scratch = stack.enter_context(TemporaryDirectory(prefix="specbench-"))
        launch = replace(self.launches[method], port=port, scratch=Path(scratch))
        command = self.command(launch)
        # The name of the log: a label such as `eagle:num_tokens=5` is not a safe file name.
        log_name = "".join(letter if letter.isalnum() else "-" for letter in method)
        # `variables` are environment variables that the engine needs, `folder` is for the logs.
        process = ServerProcess(command, self.variables, self.folder / f"{log_name}.log")
        stack.push_async_callback(asyncio.to_thread, process.stop)
        client = Client(f"http://127.0.0.1:{port}", request_s=self.request_s)
        await stack.enter_async_context(client)
        await _wait_until_ready(client, process)
        try:
            found_server = await self.find(client)  # asks the server what it is
        except UserError as error:  # the server does not serve the model
            # `death` says how its process ended; empty if it runs.
            raise SpecbenchError(f"{error.message} {process.death()}".strip()) from error
        software = found_server.header.software  # name and version; may end in "-unknown"
        if self.wheel:  # name and version; the engine itself may not know them
            software = f"{software.removesuffix('-unknown')} ({self.wheel})"
        self._headers[method] = replace_header(
            found_server.header,
            software=software,
            command=tuple(without_folders(argument) for argument in command),
        )
        return OpenServer(
            client,
            found_server,
            end=process.death,  # says how the process ended; empty while it runs
            draft_length=launch.num_tokens,  # the most tokens of a draft; 0 if unknown
            process_id=process.process_id,
        )


def without_folders(argument: str) -> str:
    """An argument of a command, with its paths cut to the names of files or folders."""
    return _FOLDERS.sub("", argument)


async def _wait_until_ready(client: Client, process: ServerProcess) -> None:
    """Wait for START_S seconds at most until the server answers.

    `client` sends requests to the server, which runs in `process`.

    Raises:
        SpecbenchError: the process ended, or the server did not answer in time.
        RequestFailed: the server asks for another key than SPECBENCH_API_KEY.
    """
    began = perf_counter()
    while perf_counter() - began < START_S:
        if death := process.death(" while it started"):  # a sentence; empty while it runs
            raise SpecbenchError(death)
        try:
            await client.get("/v1/models")
        except RequestFailed as failure:
            if failure.wants_key:  # it is ready, but needs another key
                raise
            await asyncio.sleep(_READY_POLL_S)
        else:
            return
    raise SpecbenchError(
        f"The engine did not answer within {START_S:g} s. Its last lines: {process.last_lines()}"
    )
