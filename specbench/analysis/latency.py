"""Latency of single requests: time to first token and time per output token.

Percentiles over completions, since a mean hides the slow ones. The time to the first token is
the prefill's; the time per output token is the rest of the wall time / the tokens after the
first.
"""

from dataclasses import dataclass

import numpy as np

from specbench.analysis.records import RecordTable
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value

QUANTILES = (0.50, 0.90, 0.99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of seconds over `num` completions."""

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
    """The percentiles, unless there is a reason for none. A completion of one token has no
    time per output token.
    """
    if missing:
        none = Percentiles(missing, missing, missing, 0)
        return Latency(none, none)
    tokens, prefill_s, decode_s = table.values(rows, "num_tokens", "prefill_s", "decode_s")
    has_more = tokens > 1
    return Latency(percentiles(prefill_s), percentiles(decode_s[has_more] / (tokens[has_more] - 1)))


def percentiles(seconds: FloatArray) -> Percentiles:
    """The percentiles of these times [completions], interpolated linearly.

    A percentile is given if at least one completion is expected to be slower: the 99th of 20
    would be a guess about the slowest one.
    """
    p50, p90, p99 = (_percentile(seconds, share) for share in QUANTILES)
    return Percentiles(p50, p90, p99, len(seconds))


def _percentile(seconds: FloatArray, share: float) -> Value:
    least = round(1 / (1 - share)) if share > 0.5 else 1
    if len(seconds) < least:
        return Missing(f"fewer than {least} completions" if len(seconds) else "no completion")
    return Estimate(float(np.quantile(seconds, share)))
