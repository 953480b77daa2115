"""Choose decode times: by the client's clock, or by the server's if tokens arrived in a burst.

A client's decode time runs from the first arrival of tokens to the last. If a proxy or a buffer
holds tokens back, they arrive in a burst, and the client's decode time tells nothing about
decoding. For a request with such an answer, the decode times of all methods are taken from their
servers, so that all are measured by the same kind of clock. If a server gave no decode time for
the request, the decode times of all methods are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.analysis.grouping import group_by
from specbench.analysis.server_counters import mean_draft_length
from specbench.analysis.stats.arrays import BoolArray, FloatArray
from specbench.log.backend import BlockHeader
from specbench.types import BASELINE, Record, Serving

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_OF_SERVER = 0.9
"""An answer is a burst if the client's decode time is below this share of the server's."""
LEAST_ARRIVALS = 0.25
"""An answer is a burst if it has fewer arrivals than this share of the steps that it needs."""
LONGEST_DRAFT = 15
"""The draft tokens per step that are assumed if a server does not count its drafts."""
MOST_LEFT_OUT = 0.1
"""The warning names a task if more than this share of its requests has no decode time."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeTimes:
    """The decode time of each record [records], and the clock that measured it."""

    seconds: FloatArray
    """The seconds from the first token to the last. NaN if not measured, or if left out."""

    is_burst: BoolArray
    """True for answers whose tokens reached the client in a burst."""

    is_of_server: BoolArray
    """True for times by the server's clock: all times of a request with a burst."""

    is_left_out: BoolArray
    """True for times that are left out: a request had a burst, and a server gave no time for it."""


def decode_times(
    frame: DataFrame, records: Sequence[Record], blocks: Sequence[BlockHeader]
) -> DecodeTimes:
    """Choose the decode time of each record: by the client's clock, or by the server's.

    If the answer of any method to a request arrived in a burst, the servers' clocks give the times
    of all methods for this request. The times are left out if a server gave none.

    Args:
        frame: has a row per record (see `records_frame`). The column `asked` has the number of the
            request, which is the same for all methods but differs between passes and loads;
            `decode_s` has the seconds by the client's clock.
        records: the records, in the order of the rows.
        blocks: groups of requests that servers completed together, with the increase of the
            servers' counters.
    """
    client_s = frame["decode_s"].to_numpy()  # [records]
    all_false = np.zeros(len(frame), dtype=bool)
    if not any(record.serving for record in records):  # no server: no burst
        return DecodeTimes(client_s, all_false, all_false, all_false)
    # Seconds by the server's clock; NaN for records without one [records]
    server_s = np.array([_server_s(record.serving) for record in records], dtype=np.float64)
    draft_lengths = _draft_lengths(blocks)  # method -> mean tokens per draft
    # The prefill gives the first token, so only an answer of two tokens or more has a decode time.
    # `is_measured`: the answer has tokens and did not fail.
    is_decoded = (frame["is_measured"] & (frame["num_tokens"] > 1)).to_numpy()
    is_burst = np.array(
        [
            decoded and _is_burst(record, draft_lengths.get(record.key.method, LONGEST_DRAFT))
            for record, decoded in zip(records, is_decoded.tolist(), strict=True)
        ]
    )

    request_of_row = frame["asked"].to_numpy()
    num_requests = 1 + int(request_of_row.max())
    has_burst = np.zeros(num_requests, dtype=bool)  # an answer is a burst [requests]
    has_burst[request_of_row[is_burst]] = True
    lacks_clock = np.zeros(num_requests, dtype=bool)  # an answer has no server's time [requests]
    lacks_clock[request_of_row[is_decoded & np.isnan(server_s)]] = True
    is_affected = is_decoded & has_burst[request_of_row]  # any method had a burst [records]
    is_left_out = is_affected & lacks_clock[request_of_row]
    is_of_server = is_affected & ~is_left_out
    seconds = np.where(is_of_server, server_s, client_s)
    seconds[is_left_out] = np.nan
    return DecodeTimes(seconds, is_burst, is_of_server, is_left_out)


def _server_s(serving: Serving | None) -> float | None:
    """Return the decode time by the server's clock in seconds; None without one, or if it is 0."""
    return (serving.server_decode_s or None) if serving else None


def _is_burst(record: Record, draft_length: float) -> bool:
    """Check if the tokens of an answer arrived in a burst, which makes the client's time too short.

    If the server gave a decode time, an answer is a burst if the client's time is below
    LEAST_OF_SERVER of the server's. Otherwise the number of arrivals after the first decides. An
    answer is a burst if it is 0, if it is below LEAST_ARRIVALS of the smallest number of steps that
    the tokens need, or if it is 1 but more than two steps are needed. `draft_length` is the number
    of tokens per draft. A step emits at most one token more. The answer has two tokens or more.
    """
    serving = record.serving
    if serving is None or record.decode_s is None:
        return False
    server_s = _server_s(serving)
    if server_s is not None:
        return record.decode_s < LEAST_OF_SERVER * server_s
    # Arrivals after the first, one per gap. 0 if gaps were not recorded.
    num_arrivals = len(serving.gaps_s)
    if not num_arrivals:
        return record.decode_s == 0  # if it is above 0, there were arrivals that were not recorded
    least_steps = (record.num_tokens - 1) / (1 + draft_length)  # for the tokens after the first
    # A single arrival may have the tokens of 2 steps: `draft_length` may be a mean, and a single
    # step may emit as many tokens as two steps of mean length.
    return num_arrivals < LEAST_ARRIVALS * least_steps or (num_arrivals == 1 and least_steps > 2)


def _draft_lengths(blocks: Sequence[BlockHeader]) -> Mapping[str, float]:
    """Compute the mean number of tokens per draft of each method, from the counters of its server.

    A method without counted drafts is left out, except vanilla, which gets 0. A block is a group of
    requests of a method that its server completed together. Its header has the increase of the
    server's counters during the block.
    """
    blocks_by_method = group_by(blocks, key=lambda block: block.method)
    lengths = {BASELINE: 0.0}
    for method, method_blocks in blocks_by_method.items():
        draft_length = mean_draft_length(method_blocks)  # 0 if it was not counted
        if draft_length:
            lengths[method] = draft_length
    return lengths


def count_bursts(frame: DataFrame) -> dict[str, Any]:
    """Compute the numbers in the warning about bursts; empty without a burst.

    `answers` is the number of answers in a burst. `by_server` counts the requests whose decode
    times are the servers', and `lost` counts those whose decode times are left out. A request
    counts once for all methods, and again in each pass. `cells` lists the tasks (each at a
    temperature) in which more than MOST_LEFT_OUT of the requests were lost. `frame` has a row per
    record, with the flags of `DecodeTimes` as columns.
    """
    num_answers = int(frame["is_burst"].sum())
    if not num_answers:
        return {}
    left_out = frame[frame["is_left_out"]]  # records whose decode time is left out
    over_methods = ["temperature", "task"]
    # (temperature, task) -> number of requests, and number of lost ones
    num_requests = frame.groupby(over_methods, observed=True)["asked"].nunique()
    num_lost = left_out.groupby(over_methods, observed=True)["asked"].nunique()
    cells: list[dict[str, Any]] = [
        {"temperature": temperature, "task": task, "lost": int(lost), "requests": requests}
        for (temperature, task), lost in num_lost.items()
        if lost > MOST_LEFT_OUT * (requests := int(num_requests[temperature, task]))
    ]
    return {
        "answers": num_answers,
        # None instead of 0: the warning has no sentence about this number
        "by_server": int(frame.loc[frame["is_of_server"], "asked"].nunique()) or None,
        "lost": int(left_out["asked"].nunique()) or None,
        "cells": cells,
    }
