"""A server like llama.cpp. A request may name the size of its drafts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.support.stub_server import Stub


@dataclass
class SizedLlama(Stub):
    """A llama.cpp whose number of drafted tokens follows the request, is fixed, or is not sent."""

    engine: str = "llamacpp"
    drafted: str = "follows"

    async def _stream(
        self, request: web.Request, body: Mapping[str, Any], fault: str, number: int
    ) -> web.StreamResponse:
        most = body.get("speculative.n_max", 8)
        timings: dict[str, Any] = {"predicted_n": 4}
        if self.drafted == "follows":
            timings |= {"draft_n": 3 * most, "draft_n_accepted": 1}
        elif self.drafted == "fixed":
            timings |= {"draft_n": 24, "draft_n_accepted": 1}
        end = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 4}
        events = [{"content": "abc", "tokens": [5, 6, 7, 8]}, {**end, "timings": timings}]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        return response
