"""Compute percentiles of the latency of single requests, since a mean hides the slow ones.

The time to the first token is the prefill's; the time per output token is the rest of the wall
time / the number of tokens after the first. If tokens of any method's answer to a request came in
a burst, decode times are the servers', or left out if a server gave none (see `decode_times`).
"""

from dataclasses import dataclass

import numpy as np

from specbench.analysis.records import RecordTable
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.estimates import Estimate, Missing, Value


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of seconds over `num` completions, or over `num` gaps between tokens."""

    p50: Value
    p90: Value
    p99: Value
    num: int


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of one cell, in seconds."""

    first_token: Percentiles
    per_token: Percentiles


def latency(table: RecordTable, rows: IntArray, missing: Missing | None) -> Latency:
    """Compute percentiles of the seconds to the first token and per later token, over these rows.

    `missing` is the reason why there are no percentiles; None if there are. A completion has no
    time per token if it has a single token, or if its decode time is left out (NaN).
    """
    if missing:
        no_percentiles = Percentiles(missing, missing, missing, 0)
        return Latency(no_percentiles, no_percentiles)
    num_tokens, prefill_s, decode_s = table.values(rows, "num_tokens", "prefill_s", "decode_s")
    has_decoded = (num_tokens > 1) & ~np.isnan(decode_s)
    per_token_s = decode_s[has_decoded] / (num_tokens[has_decoded] - 1)
    return Latency(percentiles(prefill_s[~np.isnan(prefill_s)]), percentiles(per_token_s))


def seconds_between_arrivals(table: RecordTable, rows: IntArray) -> FloatArray:
    """List the seconds between arrivals of tokens [gaps], answer after answer, for these rows.

    The gaps are those that the client measured. If the decode time of an answer is the server's
    (`is_of_server`), it is divided evenly among the answer's steps instead, or among its tokens
    after the first if the steps are unknown. An answer without a server, or whose decode time is
    left out, has no gaps. `rows` are numbers of records of the table.
    """
    gaps_s: list[float] = []
    # For each row: decode time in seconds, tokens, steps (maybe a fraction; 0 if unknown), flags.
    columns = table.values(
        rows, "decode_s", "num_tokens", "mat_steps", "is_of_server", "is_left_out"
    )
    for row, decode_s, num_tokens, num_steps, is_of_server, is_left_out in zip(
        rows, *columns, strict=True
    ):
        serving = table.records[row].serving  # None without a server
        if serving is None or is_left_out:
            continue
        if not is_of_server:
            gaps_s += serving.gaps_s
            continue
        num_gaps = round(num_steps) or num_tokens - 1
        gaps_s += [decode_s / num_gaps] * num_gaps
    return np.array(gaps_s)


def percentiles(seconds: FloatArray) -> Percentiles:
    """Compute percentiles of these times [completions or gaps], interpolated linearly.

    A percentile is given if at least one completion is expected to be slower: the 99th percentile
    of 20 completions would be a guess about the slowest one.
    """
    return Percentiles(
        p50=_percentile(seconds, 0.50),
        p90=_percentile(seconds, 0.90),
        p99=_percentile(seconds, 0.99),
        num=len(seconds),
    )


def _percentile(seconds: FloatArray, share: float) -> Value:
    """Find the seconds that this share of completions does not exceed; missing with too few."""
    # At least one completion is expected to be slower. The median needs a single completion.
    num_needed = round(1 / (1 - share)) if share > 0.5 else 1
    if not len(seconds):
        return Missing("no completion")
    if len(seconds) < num_needed:
        return Missing(f"fewer than {num_needed} completions")
    return Estimate(float(np.quantile(seconds, share)))
