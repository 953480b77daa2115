"""A server that replays recorded responses of a real engine (`python -m tests.engines.record`)."""

import json
from pathlib import Path
from typing import Any, TypedDict

from aiohttp import web

from tests.support.stub_server import Server

RESPONSES = Path(__file__).parent / "responses"


class Exchange(TypedDict):
    """A request, which is a GET without a body, and the response to it."""

    path: str
    body: dict[str, Any] | None
    status: int
    content_type: str
    text: str


def recorded(name: str) -> list[Exchange]:
    """The responses of an engine with a method: "vllm-eagle3"."""
    found: list[Exchange] = json.loads((RESPONSES / f"{name}.json").read_text(encoding="utf-8"))
    return found


class Replay(Server):
    """Answers a request that was recorded as it was answered then, and any other with 404.

    What was recorded twice is answered in that order; the last answer stays. A stream is sent
    event by event.
    """

    def __init__(self, exchanges: list[Exchange]) -> None:
        self._answers: dict[tuple[str, str], list[Exchange]] = {}
        for one in exchanges:
            self._answers.setdefault(_key(one["path"], one["body"]), []).append(one)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.method == "POST" else None
        known = self._answers.get(_key(request.path, body))
        if known is None:
            raise web.HTTPNotFound
        one = known.pop(0) if len(known) > 1 else known[0]
        headers = {"Content-Type": one["content_type"]}
        response = web.StreamResponse(status=one["status"], headers=headers)
        await response.prepare(request)
        for event in one["text"].split("\n\n"):
            await response.write(f"{event}\n\n".encode())
        await response.write_eof()
        return response


def _key(path: str, body: dict[str, Any] | None) -> tuple[str, str]:
    return path, json.dumps(body, sort_keys=True)
