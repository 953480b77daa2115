"""Decode times of answers: the client's, or the server's if tokens reached the client in a burst.

A client's decode time runs from the first arrival of tokens to the last. If a proxy or a buffer
holds tokens back, they arrive in a burst, and the client's decode time says nothing about decoding.
For a request with such an answer, the decode times of all methods are taken from their servers, so
that the same kind of clock compares the methods. If a server gave no decode time for the request,
the decode times of all methods are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.analysis.server_counters import counter_total
from specbench.analysis.stats.arrays import BoolArray, FloatArray
from specbench.log.backend import BlockHeader
from specbench.types import BASELINE, Record, Serving

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_OF_SERVER = 0.9
"""An answer is a burst if the client's decode time is below this share of the server's."""
LEAST_ARRIVALS = 0.25
"""An answer is a burst if its arrivals are below this share of the steps that its tokens need."""
LONGEST_DRAFT = 15
"""Draft tokens per step that are assumed if a server does not count its drafts."""
MOST_LEFT_OUT = 0.1
"""The warning names a task if more than this share of its requests has no decode time."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeTimes:
    """The decode time of each record [records], and the clock that measured it."""

    seconds: FloatArray
    """Seconds from the first token to the last. NaN if they were not measured, or are left out."""

    is_burst: BoolArray
    """True for answers whose tokens reached the client in a burst."""

    is_of_server: BoolArray
    """True for times by the server's clock: of requests with a burst, for all methods."""

    is_left_out: BoolArray
    """True for times that are left out: of requests with a burst, if a server gave no time."""


def decode_times(
    frame: DataFrame, records: Sequence[Record], blocks: Sequence[BlockHeader]
) -> DecodeTimes:
    """The decode times of the records, one per row of their `frame` (see `records_frame`).

    `frame` needs the column `asked`, the number of the request over all methods. `blocks` are
    groups of requests that servers completed together, with the increase of their counters.
    """
    client_s = frame["decode_s"].to_numpy()
    nothing = np.zeros(len(frame), dtype=bool)
    if not any(record.serving for record in records):
        return DecodeTimes(client_s, nothing, nothing, nothing)
    # None becomes NaN.
    server_s = np.array([_server_s(record.serving) for record in records], dtype=np.float64)
    draft_lengths = _draft_lengths(blocks)
    # The first token is the prefill's, so that decoding takes two tokens or more.
    is_decoded = (frame["is_measured"] & (frame["num_tokens"] > 1)).to_numpy()
    is_burst = nothing.copy()
    for row in np.flatnonzero(is_decoded).tolist():
        record = records[row]
        draft_length = draft_lengths.get(record.key.method, LONGEST_DRAFT)
        is_burst[row] = _is_burst(record, draft_length)

    request_of_row = frame["asked"].to_numpy()  # numbers of requests, the same for all methods
    num_requests = 1 + int(request_of_row.max())
    has_burst = np.zeros(num_requests, dtype=bool)  # by request: some answer is a burst
    has_burst[request_of_row[is_burst]] = True
    lacks_clock = np.zeros(num_requests, dtype=bool)  # by request: some answer has no server_s
    lacks_clock[request_of_row[is_decoded & np.isnan(server_s)]] = True
    is_concerned = is_decoded & has_burst[request_of_row]  # [records], like the next two
    is_left_out = is_concerned & lacks_clock[request_of_row]
    is_of_server = is_concerned & ~is_left_out
    seconds = np.where(is_of_server, server_s, client_s)
    seconds[is_left_out] = np.nan
    return DecodeTimes(seconds, is_burst, is_of_server, is_left_out)


def _server_s(serving: Serving | None) -> float | None:
    """The decode time by the server's clock; None without a clock, or if it did not move."""
    return (serving.server_decode_s or None) if serving else None


def _is_burst(record: Record, draft_length: float) -> bool:
    """True if tokens arrived in a burst, so that the client's decode time is too short.

    If the server gave its own decode time, the client's is below LEAST_OF_SERVER of it. If not, the
    arrivals after the first are fewer than LEAST_ARRIVALS of the steps that the tokens need, or
    there is only one arrival although more than two steps are needed. A step emits a token and at
    most the `draft_length` tokens of its draft. The answer has two tokens or more.
    """
    serving = record.serving
    if serving is None or record.decode_s is None:
        return False
    server_s = _server_s(serving)
    if server_s is not None:
        return record.decode_s < LEAST_OF_SERVER * server_s
    num_arrivals = len(serving.gaps_s)  # after the first
    if not num_arrivals:
        return record.decode_s == 0  # above 0, later arrivals were not recorded
    least_steps = (record.num_tokens - 1) / (1 + draft_length)
    # The limit is 2 steps, since `draft_length` may be a mean: a step may emit as much as two.
    return num_arrivals < LEAST_ARRIVALS * least_steps or (num_arrivals == 1 and least_steps > 2)


def _draft_lengths(blocks: Sequence[BlockHeader]) -> Mapping[str, float]:
    """The mean number of tokens per draft, by method; 0 for vanilla.

    Methods without counted drafts are absent. A block is a batch of requests of one method on one
    task; its header has the increase of the server's counters meanwhile.
    """
    blocks_by_method: dict[str, list[BlockHeader]] = defaultdict(list)
    for block in blocks:
        blocks_by_method[block.method].append(block)
    lengths = {BASELINE: 0.0}
    for method, method_blocks in blocks_by_method.items():
        num_drafts = counter_total(method_blocks, "num_drafts")
        num_draft_tokens = counter_total(method_blocks, "num_draft_tokens")
        if num_drafts and num_draft_tokens:
            lengths[method] = num_draft_tokens / num_drafts
    return lengths


def count_bursts(frame: DataFrame) -> dict[str, Any]:
    """Numbers of answers that came in bursts, and of requests by the source of their times.

    Empty without a burst. A request counts once for all its methods. `frame` is the frame of a
    record table. `cells` are the tasks with more than MOST_LEFT_OUT of their requests left out.
    """
    num_answers = int(frame["is_burst"].sum())
    if not num_answers:
        return {}
    left_out = frame[frame["is_left_out"]]  # records without a decode time
    over_methods = ["temperature", "task"]
    # Requests by temperature and task: all, and those that are left out.
    num_requests = frame.groupby(over_methods, observed=True)["asked"].nunique()
    num_lost = left_out.groupby(over_methods, observed=True)["asked"].nunique()
    cells: list[dict[str, Any]] = [
        {"temperature": temperature, "task": task, "lost": int(lost), "requests": requests}
        for (temperature, task), lost in num_lost.items()
        if lost > MOST_LEFT_OUT * (requests := int(num_requests[temperature, task]))
    ]
    return {
        "answers": num_answers,
        # None instead of 0 leaves the sentence out
        "by_server": int(frame.loc[frame["is_of_server"], "asked"].nunique()) or None,
        "lost": int(left_out["asked"].nunique()) or None,
        "cells": cells,
    }
