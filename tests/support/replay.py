"""A server that replays recorded responses of a real engine (`python -m tests.engines.record`)."""

import json
from pathlib import Path
from typing import Any, TypedDict

from aiohttp import web

from tests.support.stub_server import Server

RESPONSES = Path(__file__).parent / "responses"


class Exchange(TypedDict):
    """A request and the response to it. A request without a body is a GET."""

    path: str
    body: dict[str, Any] | None
    status: int
    content_type: str
    text: str


def recorded(name: str) -> list[Exchange]:
    """The responses of an engine with a method, such as "vllm-eagle3"."""
    exchanges: list[Exchange] = json.loads((RESPONSES / f"{name}.json").read_text(encoding="utf-8"))
    return exchanges


class Replay(Server):
    """A server that answers a recorded request as it was answered then, and any other with 404.

    If a request was recorded twice, the answers come in that order, and the last one stays. A
    stream is sent event by event.
    """

    def __init__(self, exchanges: list[Exchange]) -> None:
        self._answers: dict[tuple[str, str], list[Exchange]] = {}
        for exchange in exchanges:
            self._answers.setdefault(_key(exchange["path"], exchange["body"]), []).append(exchange)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.method == "POST" else None
        answers = self._answers.get(_key(request.path, body))
        if answers is None:
            raise web.HTTPNotFound
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        headers = {"Content-Type": answer["content_type"]}
        response = web.StreamResponse(status=answer["status"], headers=headers)
        await response.prepare(request)
        for event in answer["text"].split("\n\n"):
            await response.write(f"{event}\n\n".encode())
        await response.write_eof()
        return response


def _key(path: str, body: dict[str, Any] | None) -> tuple[str, str]:
    return path, json.dumps(body, sort_keys=True)
