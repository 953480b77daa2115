"""The limit of a speedup on a machine: the time to read the weights from memory.

At batch 1 a step computes little for each weight that it reads, so that no step is faster than its
bytes over the memory's bandwidth. Vanilla's step reads the target's weights; a speculative step the
target's and, to draft, the drafter's. Hence

    limit = MAT * target bytes / (target bytes + draft bytes)

Keys and values are left out: every method's target forward reads as good as the same ones, so that
they move the limit by a fraction of their own share (`kv_share`), which is a few percent for the
papers' prompts. Weights that fit into a processor's cache are not read from memory, and the target
has no such limit then.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specbench.analysis.cells import BASELINE
from specbench.analysis.stats import Estimate, Missing, Value
from specbench.types import Record

NO_BANDWIDTH = Missing("bandwidth not measured")
IN_CACHE = Missing("weights fit the cache")
EXPERTS = Missing("mixture of experts")
UNKNOWN_DRAFT = Missing("draft bytes unknown")

CACHE_MARGIN = 2.0
"""Weights up to this many times the cache's size are not taken to come from memory: part of them
stays in the cache from step to step."""
LEAST_SHARE = 0.6
"""The share of bandwidth below which vanilla is a slow baseline."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """What one run's memory allows. `draft_bytes` maps a method's spelling to bytes a step.

    `cache_bytes` is the size of the last-level cache, 0 where it is unknown. `kv_share` is how many
    bytes of keys and values vanilla's mean step read, over those of the weights. `why_not` says why
    there are no limits, where there are none.
    """

    bandwidth: float
    target_bytes: int
    cache_bytes: int
    draft_bytes: Mapping[str, float]
    kv_share: float
    why_not: Missing | None = None

    def limit(self, method: str, mat: Value) -> Value:
        """The limit of a method's decode speedup at the MAT that it has."""
        if self.why_not or isinstance(mat, Missing):
            return self.why_not or mat
        if method not in self.draft_bytes:
            return UNKNOWN_DRAFT
        step = self.target_bytes + self.draft_bytes[method]
        return Estimate(mat.value * self.target_bytes / step)

    def bandwidth_share(self, step_s: Value) -> Value:
        """The share of the bandwidth that vanilla's steps use, each of `step_s` seconds."""
        if self.why_not or isinstance(step_s, Missing):
            return self.why_not or step_s
        return Estimate(self.target_bytes / (step_s.value * self.bandwidth))


def read_roofline(header: Mapping[str, Any], records: Iterable[Record]) -> Roofline | Missing:
    """The roofline of a run's header, as leniently as the rest of it is read."""
    found = header.get("roofline")
    found = found if isinstance(found, Mapping) else {}
    bandwidth = _number(found.get("bandwidth_bytes_per_s"))
    target = int(_number(found.get("target_bytes")))
    if bandwidth <= 0 or target <= 0:
        return NO_BANDWIDTH
    draft = found.get("draft_bytes")
    cache = int(_number(found.get("cache_bytes")))
    why_not = EXPERTS if found.get("is_mixture_of_experts") else None
    if target <= CACHE_MARGIN * cache:
        why_not = IN_CACHE
    return Roofline(
        bandwidth,
        target,
        cache,
        {
            str(method): _number(value)
            for method, value in (draft.items() if isinstance(draft, Mapping) else ())
            if isinstance(value, int | float)
        },
        _number(found.get("kv_bytes_per_token")) * _mean_context(records) / target,
        why_not,
    )


def _mean_context(records: Iterable[Record]) -> float:
    """Tokens in the cache at vanilla's mean step."""
    tokens = steps = 0.0
    for record in records:
        if record.key.method == BASELINE:
            count = len(record.accept_lengths)
            tokens += count * (record.prompt_tokens + (count + 1) / 2)
            steps += count
    return tokens / steps if steps else 0.0


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and value >= 0 else 0.0
