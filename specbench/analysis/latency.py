"""Latency as a user of one prompt meets it: time to first token, time per output token.

Percentiles over completions, not means: a mean hides the slow ones. Time to first token is the
prefill's, in which the drafter takes no part but for what it wants to see; time per output token is
the rest of the wall time / the tokens after the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specbench.analysis.columns import Columns
from specbench.analysis.stats import Estimate, FloatArray, Missing, Value

QUANTILES = (0.50, 0.90, 0.99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds that half, 90 % and 99 % of `num` completions keep within."""

    p50: Value
    p90: Value
    p99: Value
    num: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one cell, in seconds."""

    first_token: Percentiles
    per_token: Percentiles


def missing_latency(reason: Missing) -> Latency:
    """The latency of a cell that has none."""
    none = Percentiles(reason, reason, reason, 0)
    return Latency(none, none)


def latency(completions: Columns) -> Latency:
    """The percentiles; a completion of one token has no time per output token."""
    has_more = completions.tokens > 1
    per_token = completions.decode_s[has_more] / (completions.tokens[has_more] - 1)
    return Latency(percentiles(completions.prefill_s), percentiles(per_token))


def percentiles(seconds: FloatArray) -> Percentiles:
    """The percentiles of these times, interpolated linearly between neighbours.

    A percentile is given where at least one of so many completions is expected to lie behind it:
    the 99th of 20 would be a guess about the slowest one.
    """
    p50, p90, p99 = (_percentile(seconds, share) for share in QUANTILES)
    return Percentiles(p50, p90, p99, len(seconds))


def _percentile(seconds: FloatArray, share: float) -> Value:
    least = round(1 / (1 - share))
    if len(seconds) < (least if share > 0.5 else 1):
        return Missing(f"fewer than {least} completions" if len(seconds) else "no completion")
    return Estimate(float(np.quantile(seconds, share)))
