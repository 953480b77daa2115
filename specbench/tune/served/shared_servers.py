"""Servers of llama.cpp that answer with several draft sizes. Each request names a size.

One server per method is then enough for all sizes. Some versions ignore the number in a request, so
the server's count of drafted tokens is checked first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specbench.log.backend import Arrangement, ServerHeader
from specbench.log.header import RunHeader
from specbench.measure.server.backend import ServerBackend
from specbench.measure.server.engine import Launch
from specbench.measure.server.servers import OpenServer, ServerSource
from specbench.measure.server.started_servers import StartedServers
from specbench.measure.server.started_setup import StartedSetup, make_started_setup
from specbench.measure.server.stream import ChatRequest, StreamProtocol
from specbench.measure.spec import RunSpec
from specbench.tune.served.draft_size import DraftSize
from specbench.types import Request

_FIELD = "speculative.n_max"
"""The request field that limits the number of draft tokens."""


def sized_protocol(protocol: StreamProtocol, num_tokens: int) -> StreamProtocol:
    """Make requests of a protocol ask for drafts of at most `num_tokens` tokens."""

    def body(model: str, ask: ChatRequest) -> dict[str, Any]:
        return {**protocol.body(model, ask), _FIELD: num_tokens}

    return replace(protocol, body=body)


async def unsupported_reason(source: ServerSource, largest: DraftSize, request: Request) -> str:
    """Return the reason why a server does not support a draft size per request; "" if it does.

    The server answers the same request twice: with drafts of one token, and with drafts of the
    largest size. It supports sizes if it counts different numbers of drafted tokens, or if there
    is one size only.

    Args:
        source: starts the server.
        largest: the largest draft size of the server's method.
        request: the request that is completed. A server that takes no tokens gets a short chat in
            place of its prompt.

    Raises:
        SpecbenchError: the server did not start, or did not answer.
    """
    server = await source.open(largest.label)
    # by draft size: drafted tokens of the answer; None if the server does not count them
    draft_counts: dict[int, int | None] = {}
    for num_tokens in (1, largest.num_tokens):
        sized_server = _sized(server, num_tokens)
        answer = await sized_server.complete(
            ChatRequest(request, [{"role": "user", "content": "Hello"}])
        )
        draft_counts[num_tokens] = answer.counts.num_drafted
    if draft_counts[1] is None:
        return "The server does not count drafted tokens (draft_n)."
    if largest.num_tokens > 1 and draft_counts[1] == draft_counts[largest.num_tokens]:
        return (
            f"The server ignores {_FIELD} in a request: it drafted {draft_counts[1]} tokens "
            f"(draft_n) for both 1 and {largest.num_tokens}."
        )
    return ""


def _sized(server: OpenServer, num_tokens: int) -> OpenServer:
    """Return a server as seen by requests that ask for drafts of at most `num_tokens` tokens."""
    protocol = sized_protocol(server.properties.protocol, num_tokens)
    return replace(
        server,
        properties=replace(server.properties, protocol=protocol),
        draft_length=num_tokens,
        is_warm=False,
        sent_prompts=deque(maxlen=server.sent_prompts.maxlen),
    )


@dataclass(slots=True, eq=False)
class SharedServers:
    """Started servers, one per method. Each answers with all sizes of its method."""

    source: ServerSource
    """Starts and ends the servers."""
    launches: Mapping[str, Launch]
    """The servers that a run asks for, by label."""
    _sized_servers: dict[str, OpenServer] = field(default_factory=dict)
    """The running server, as each label sees it."""
    _running: OpenServer | None = None
    """The running server, which all sizes of a method share."""

    @property
    def is_one_at_a_time(self) -> bool:
        return self.source.is_one_at_a_time

    @property
    def arrangement(self) -> Arrangement | None:
        return self.source.arrangement

    async def open(self, method: str) -> OpenServer:
        """Return the server of a label. Its requests ask for the draft size of this label.

        All sizes of a method share the server with the largest size. `method` is the label of a
        method with one size, or of plain decoding.

        Raises:
            SpecbenchError: the server did not start, or died more than once.
        """
        server = await self.source.open(self.largest(method))  # starts it if it does not run
        if server is not self._running:  # another server than at the last call
            self._running = server
            self._sized_servers = {}
        num_tokens = self.launches[method].num_tokens  # the draft size; 0 for plain decoding
        if num_tokens and method not in self._sized_servers:
            self._sized_servers[method] = _sized(server, num_tokens)
        return self._sized_servers.get(method, server)  # `server` itself for plain decoding

    async def end_pass(self) -> None:
        """Clear what the servers remember, so that the next pass begins without it."""
        await self.source.end_pass()

    async def close(self) -> None:
        """End the server that runs, if any."""
        await self.source.close()

    def describe(self) -> dict[str, ServerHeader]:
        """Describe the servers for the header of a run, by method."""
        headers = self.source.describe()
        return {
            label: headers[largest]
            for label in self.launches
            if (largest := self.largest(label)) in headers
        }

    def process_ids(self) -> dict[str, int]:
        """Return the processes of the servers that run, by method."""
        process_ids = self.source.process_ids()
        return {
            label: process_ids[largest]
            for label in self.launches
            if (largest := self.largest(label)) in process_ids
        }

    def largest(self, label: str) -> str:
        """Return the label of the largest size of the same method with the same options."""
        launch = self.launches[label]
        labels_of_method = [
            label_of_size
            for label_of_size, launch_of_size in self.launches.items()
            if replace(launch_of_size, num_tokens=launch.num_tokens) == launch
        ]
        return max(labels_of_method, key=lambda size: self.launches[size].num_tokens)


@dataclass(frozen=True)
class SharedSetup(StartedSetup):
    """The methods of an engine, with one server per method for all sizes."""

    def open(self, folder: Path, before: RunHeader | None = None) -> ServerBackend:
        """Make the backend that measures in a folder, with one server per method.

        It starts only the servers of each method's largest size. `before` is the header of the run
        in the folder if that run is continued; None for a new run.
        """
        backend = StartedSetup.open(self, folder, before)  # would start a server per size
        started_servers = backend.source
        assert isinstance(started_servers, StartedServers)
        shared_servers = SharedServers(started_servers, self.servers)
        largest_labels = {shared_servers.largest(label) for label in self.servers}
        started_servers.launches = {
            label: launch
            for label, launch in started_servers.launches.items()
            if label in largest_labels
        }
        backend.source = shared_servers
        return backend


def make_shared_setup(spec: RunSpec, *, is_offline: bool = False) -> SharedSetup:
    """Make the setup of a run in which requests name the size of their drafts."""
    return SharedSetup(**vars(make_started_setup(spec, is_offline=is_offline)))
