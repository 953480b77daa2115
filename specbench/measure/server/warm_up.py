"""Warm up a server with untimed requests before its first block."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from specbench.log.backend import counted_drafts
from specbench.measure.server.counters import SETTLE_S, increase
from specbench.measure.server.find import HELLO
from specbench.measure.server.servers import OpenServer
from specbench.measure.server.stream import ChatRequest, RequestFailed
from specbench.types import Request

WARM_UP_TOKENS = 32
"""The most tokens of an answer in the warm-up."""


async def warm_up(server: OpenServer, requests: Sequence[Request], num_at_once: int) -> None:
    """Send every request to a server, ask for short answers, and note the drafts that it made.

    The first of `requests` is a usual request, of which `num_at_once` copies are sent at once: the
    run's largest --concurrency, or 1 if requests come only at a rate. The rest are sent one by one.
    `server.num_untimed_drafts` gets the number of drafts (or draft tokens) that the server counted
    in the warm-up and in the short answer to `find_server`. At the end, the server's counters are
    up to date, and `server.is_warm` is set. Requests that fail are ignored.
    """
    counters_before = await server.counters()
    for i, request in enumerate(requests):
        budget = min(WARM_UP_TOKENS, request.max_new_tokens)  # most tokens of the answer
        short_request = replace(request, max_new_tokens=budget)
        # A server that takes no tokens gets this chat in place of the request's prompt.
        chat_request = ChatRequest(short_request, HELLO)
        copies = [server.complete(chat_request) for _ in range(num_at_once if i == 0 else 1)]
        for answer in await asyncio.gather(*copies, return_exceptions=True):
            # If a request failed, the run's requests will fail too, and say why.
            if isinstance(answer, BaseException) and not isinstance(answer, RequestFailed):
                raise answer
    await asyncio.sleep(SETTLE_S)  # so that late counts are not added to the first block
    growth = increase(counters_before, await server.counters())
    server.num_untimed_drafts = server.properties.num_drafts + counted_drafts(growth)
    server.is_warm = True
