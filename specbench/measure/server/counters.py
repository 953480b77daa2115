"""The counters of a server, in Prometheus' text format, and how much they grew.

Engines say which of their metrics matter. Values are summed over labels, so that a server with
several engines counts for all of them.
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
"""Seconds that a server has to bring its counters up to date."""
_POLL_S = 0.005
"""Seconds between readings of counters that are not up to date."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SAMPLE = re.compile(rf"^([\w:]+)(?:\{{(.*)\}})? +({_NUMBER})(?=\s|$)", re.M | re.A)
"""A line: name{labels} number. A time may follow."""
_POSITION = re.compile(r'position="(\d{1,3})"', re.A)


def read_counters(text: str) -> dict[str, float]:
    """The counts of a server since its start, by our names of the counters.

    For example, `num_drafts`; `accepted_at_1` counts accepted tokens at the first position of
    drafts. `text` has Prometheus' format: lines such as `vllm:name_total{position="0"} 12`.
    Metrics without a name of ours are left out. Metrics with the same name are added up. The result
    is empty for a text that is not a list of metrics.
    """
    our_names = {  # our names of counters by metric, such as `vllm:spec_decode_num_drafts`
        f"{engine}:{metric}": counter
        for engine in NAMES  # all engines, such as vllm
        for metric, counter in load_engine(engine).counters.items()
    }
    counters: dict[str, float] = {}
    # The groups of _SAMPLE in each line that is a metric. `labels` is the text in braces.
    for metric, labels, number in _SAMPLE.findall(text):
        counter = our_names.get(metric.removesuffix("_total"))  # the suffix of Prometheus
        if counter == "accepted_at":  # one per position of a draft, from 0 in the label
            position = _POSITION.search(labels)  # the match; its group 1 is the number
            counter = f"accepted_at_{int(position[1]) + 1}" if position else None  # from 1
        if counter:
            counters[counter] = counters.get(counter, 0.0) + float(number)
    return {counter: count for counter, count in counters.items() if math.isfinite(count)}


def increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The growth of every counter; empty if one fell, which means that the server restarted."""
    if any(after.get(counter, 0.0) < count for counter, count in before.items()):
        return {}
    return {counter: count - before.get(counter, 0.0) for counter, count in after.items()}


@dataclass(slots=True)
class AnswerCounts:
    """Counts of single answers of a server that completes one request at a time."""

    read: Callable[[], Awaitable[dict[str, float]]]
    """Reads the server's counters."""
    counters: dict[str, float]
    """The counters after the last answer."""

    async def counted(self, record: Record) -> Record:
        """The record of a new answer, with its numbers of drafts and of accepted draft tokens.

        They are the growth of the server's counters, unless the record has them already. No other
        request of this run may be under way.

        The record stays as it is if the counters, at most SETTLE_S after the answer, have not grown
        by exactly the answer's tokens: then they lag, or count requests of other clients too.
        """
        before = self.counters  # counts by name
        deadline = perf_counter() + SETTLE_S
        self.counters = await self.read()
        # The server's count of tokens, once it has counted this answer.
        num_expected = before.get("num_tokens", 0.0) + record.num_tokens
        while self.counters.get("num_tokens", 0.0) < num_expected and perf_counter() < deadline:
            await asyncio.sleep(_POLL_S)
            self.counters = await self.read()
        growth = increase(before, self.counters)  # of each counter, by name
        serving = record.serving  # what only a server's answer has; None if there is no answer
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
