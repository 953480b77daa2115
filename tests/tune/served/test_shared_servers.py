"""One llama.cpp server answers with several draft sizes, if it follows the request's number."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from specbench.log.backend import Arrangement, ServerHeader
from specbench.measure.server.client import Client
from specbench.measure.server.engine import Launch, load_engine
from specbench.measure.server.find import FoundServer
from specbench.measure.server.servers import OpenServer
from specbench.measure.server.stream import ChatRequest
from specbench.registry import MethodChoice
from specbench.tune.served.draft_size import DraftSize
from specbench.tune.served.shared_servers import SharedServers, unsupported_reason
from specbench.types import Request
from tests.support.sized_llama import SizedLlama
from tests.support.stub_server import serving

REQUEST = Request((1, 8, 9), 16)
ASK = ChatRequest(REQUEST, [])
LARGEST = DraftSize(MethodChoice("sps", {"num_tokens": "8"}), 8)


@dataclass
class OneServer:
    """A source of servers, whose only server answers for every label."""

    server: OpenServer
    opened: list[str] = field(default_factory=list)
    is_one_at_a_time: bool = True
    arrangement: Arrangement | None = None

    async def open(self, method: str) -> OpenServer:
        self.opened.append(method)
        return self.server

    async def end_pass(self) -> None: ...
    async def close(self) -> None: ...
    def describe(self) -> dict[str, ServerHeader]:
        return dict.fromkeys(self.opened, self.server.properties.header)

    def process_ids(self) -> dict[str, int]:
        return dict.fromkeys(self.opened, 7)


def opened(client: Client) -> OpenServer:
    protocol = load_engine("llamacpp").protocol
    assert protocol
    header = ServerHeader(client.root, "llama.cpp b11434", "tiny", protocol.name)
    return OpenServer(client, FoundServer(header, protocol))


@pytest.mark.parametrize(
    ("drafted", "reason"),
    [
        ("follows", ""),
        ("fixed", "it drafted 24 tokens (draft_n) for both 1 and 8"),
        ("absent", "does not count drafted tokens (draft_n)"),
    ],
)
def test_a_server_that_ignores_the_number_is_detected(drafted: str, reason: str) -> None:
    async def ask(root: str) -> str:
        async with Client(root) as client:
            return await unsupported_reason(OneServer(opened(client)), LARGEST, REQUEST)

    with serving(SizedLlama(drafted=drafted)) as stub:
        said = asyncio.run(ask(stub.root))
    assert reason in said and bool(reason) == bool(said)
    assert [body["speculative.n_max"] for body in stub.requests] == [1, 8]


def test_a_server_with_one_size_need_not_follow_the_number() -> None:
    async def ask(root: str) -> str:
        async with Client(root) as client:
            one_token = replace(LARGEST, num_tokens=1)
            return await unsupported_reason(OneServer(opened(client)), one_token, REQUEST)

    with serving(SizedLlama(drafted="follows")) as stub:
        assert asyncio.run(ask(stub.root)) == ""


def launch(method: str, num_tokens: int, scope: Any = "request") -> Launch:
    return Launch(Path(), "tiny", method, None, num_tokens, 64, 1, "", True, scope)


def test_one_server_runs_all_sizes_of_a_method() -> None:
    launches = {
        "vanilla": launch("vanilla", 0),
        "sps:num_tokens=2": launch("sps", 2),
        "sps:num_tokens=8": launch("sps", 8),
        "ngram": launch("ngram", 3),
    }

    async def use(root: str) -> tuple[OneServer, Sequence[int | None], Mapping[str, ServerHeader]]:
        async with Client(root) as client:
            source = OneServer(opened(client))
            servers = SharedServers(source, launches)
            seen = [await servers.open(label) for label in launches]
            again = await servers.open("sps:num_tokens=2")
            assert again is seen[1], "its warm-up is remembered"
            source.server = replace(source.server)
            assert await servers.open("sps:num_tokens=2") is not again, "the process is a new one"
            bodies = [
                server.properties.protocol.body("tiny", ASK).get("speculative.n_max")
                for server in seen
            ]
            return source, bodies, servers.describe()

    with serving(SizedLlama()) as stub:
        source, bodies, headers = asyncio.run(use(stub.root))
    assert source.opened[:4] == ["vanilla", "sps:num_tokens=8", "sps:num_tokens=8", "ngram"]
    assert bodies == [None, 2, 8, 3]
    assert [*headers] == [*launches]
