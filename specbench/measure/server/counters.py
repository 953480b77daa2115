"""Read the counters of a server, which are in Prometheus's text format, and how much they grew.

Each engine's file lists the metrics that matter. Values are summed over labels, so that the counts
of a server with several engines cover all of them.
"""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

from specbench.measure.server import NAMES
from specbench.measure.server.engine import load_engine
from specbench.types import Record

SETTLE_S = 0.05
"""Seconds that a server may take to update its counters."""
_POLL_S = 0.005
"""Seconds between two readings of counters that are not up to date."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SAMPLE = re.compile(rf"^([\w:]+)(?:\{{(.*)\}})? +({_NUMBER})(?=\s|$)", re.M | re.A)
"""A line: name{labels} number. A time may follow."""
_POSITION = re.compile(r'position="(\d{1,3})"', re.A)


def read_counters(text: str) -> dict[str, float]:
    """The counts of a server since its start, by our names of the counters.

    Names are, for example, `num_drafts`, or `accepted_at_1` for accepted tokens at the first
    position of drafts. `text` has Prometheus's format: lines such as
    `vllm:name_total{position="0"} 12`. Metrics that we have no name for are left out. Metrics with
    the same name are added up. The result is empty for a text that is not a list of metrics.
    """
    our_names = {  # our names of counters by metric, such as `vllm:spec_decode_num_drafts`
        f"{engine}:{metric}": counter
        for engine in NAMES  # all engines, such as vllm
        for metric, counter in load_engine(engine).counters.items()
    }
    counters: dict[str, float] = {}
    # `_SAMPLE` matches a line with a metric. `labels` is the text in its braces.
    for metric, labels, number in _SAMPLE.findall(text):
        counter = our_names.get(metric.removesuffix("_total"))  # the suffix of Prometheus
        if counter == "accepted_at":  # its label has the position in the draft, from 0
            position = _POSITION.search(labels)  # group 1 of a match is the position
            counter = f"accepted_at_{int(position[1]) + 1}" if position else None  # from 1
        if counter:
            counters[counter] = counters.get(counter, 0.0) + float(number)
    return {counter: count for counter, count in counters.items() if math.isfinite(count)}


def increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The growth of every counter. It is empty if a counter fell, because then the server
    restarted.
    """
    if any(after.get(counter, 0.0) < count for counter, count in before.items()):
        return {}
    return {counter: count - before.get(counter, 0.0) for counter, count in after.items()}


@dataclass(slots=True)
class AnswerCounts:
    """Counts the drafts of single answers from a server that gets one request at a time."""

    read: Callable[[], Awaitable[dict[str, float]]]
    """Reads the server's counters."""
    counters: dict[str, float]
    """The counters after the last answer."""

    async def counted(self, record: Record) -> Record:
        """The record of a new answer, with its numbers of drafts and of accepted draft tokens.

        They are the growth of the server's counters, unless the record already has them. No other
        request of this run may be in flight.

        The record stays as it is if the counters have not grown by exactly the answer's tokens
        within SETTLE_S seconds. In that case they lag, or also count the requests of other clients.
        """
        before = self.counters  # counts by name
        deadline = perf_counter() + SETTLE_S
        self.counters = await self.read()
        # The server's count of tokens, once it includes this answer.
        num_expected = before.get("num_tokens", 0.0) + record.num_tokens
        while self.counters.get("num_tokens", 0.0) < num_expected and perf_counter() < deadline:
            await asyncio.sleep(_POLL_S)
            self.counters = await self.read()
        growth = increase(before, self.counters)  # increase of each counter, by name
        serving = record.serving  # fields that only a server's answer has; None without an answer
        if serving is None or growth.get("num_tokens") != record.num_tokens:
            return record
        num_drafts = growth.get("num_drafts")
        num_accepted = growth.get("num_accepted")
        # The server lacks a counter, or counts more drafts than the answer can have.
        if num_drafts is None or num_accepted is None or num_drafts > record.num_tokens:
            return record
        counted_serving = replace(
            serving,
            num_drafts=int(num_drafts) if serving.num_drafts is None else serving.num_drafts,
            num_accepted=(
                int(num_accepted) if serving.num_accepted is None else serving.num_accepted
            ),
        )
        return replace(record, serving=counted_serving)
