"""Read a server's schedules: tables with the number of draft tokens (0 or more) at each load."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from specbench.log.backend import ServerHeader
from specbench.log.header import RunHeader
from specbench.log.run import loads_of

_TABLE = "per_batch_size"
"""The names of vLLM's schedule tables end with this. A row has the smallest and the largest number
of requests at once to which it applies, and its number of draft tokens.
"""
_ADAPTIVE = "adaptive"
"""Part of an argument with which a server chooses the number of draft tokens itself."""


def may_ask_for_none(header: RunHeader, method: str) -> bool:
    """Check if the command of a method's server has a schedule that may ask for no drafts.

    Such a schedule is a table with a row of 0 draft tokens that a load of the run reaches. A load
    of N requests at once reaches rows for up to N requests, and a request rate may reach any row.
    If no table can be read, any argument that names a schedule is enough. The result is False for a
    method without a server.
    """
    server = header.servers.get(method)
    if server is None:
        return False
    tables = [*_tables(server)]
    if not tables:  # no schedule, an adaptive server, or a table that cannot be read
        return any(_ADAPTIVE in word or _TABLE in word for word in server.command)
    loads = loads_of(header.spec.values)
    has_rate = any(load.request_rate for load in loads)
    # the largest number of requests at once
    most_at_once = max((load.concurrency for load in loads), default=1)
    return any(
        num_draft_tokens == 0 and (has_rate or least_requests <= most_at_once)
        for rows in tables
        for least_requests, _, num_draft_tokens in rows
    )


def _tables(server: ServerHeader) -> Iterator[list[tuple[int, int, int]]]:
    """Read the rows of each schedule table in the command of a server.

    A row has the smallest and the largest number of requests at once to which it applies, and its
    number of draft tokens. Tables that cannot be read are left out.
    """
    for word in server.command:
        if _TABLE in word:
            with suppress(msgspec.MsgspecError, RecursionError):  # it cannot be read
                for name, rows in msgspec.json.decode(word, type=dict[str, Any]).items():
                    if name.endswith(_TABLE):
                        yield msgspec.convert(rows, list[tuple[int, int, int]])
