"""Counters of a server in Prometheus' text format, and how much they grew.

Knows the names that engines give to the counters that matter here. Sums over labels: a server with
several engines counts for all of them. https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_POSITION = re.compile(r'\bposition="(\d+)"')
_NAMES = {
    "spec_decode_num_drafts": "num_drafts",
    "spec_decode_num_draft_tokens": "num_draft_tokens",
    "spec_decode_num_accepted_tokens": "num_accepted",
    "spec_decode_num_accepted_tokens_per_pos": "accepted_at",
    "spec_decode_per_pos": "accepted_at",
    "generation_tokens": "num_tokens",
    "tokens_predicted": "num_tokens",
    "prefix_cache_hits": "num_cached_tokens",
    "cached_tokens": "num_cached_tokens",
    "prompt_tokens_cached": "num_cached_tokens",
}
"""Names without the engine's prefix and the suffix `_total`, to our names."""
_ENGINES = ("vllm", "sglang", "llamacpp")


def read_counters(text: str) -> dict[str, float]:
    """The counters known here, by our names: `accepted_at_1` is the first draft position."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        engine, _, name = match[1].partition(":")
        ours = _NAMES.get(name.removesuffix("_total"))
        if engine not in _ENGINES or ours is None:
            continue
        if ours == "accepted_at":
            position = _POSITION.search(match[2] or "")
            if position is None:
                continue
            ours = f"accepted_at_{int(position[1]) + 1}"
        value = _number(match[3])
        if value is not None:
            found[ours] = found.get(ours, 0.0) + value
    return found


def increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The growth of every counter; empty if one fell, which means that the server restarted."""
    if any(after.get(name, 0.0) < value for name, value in before.items()):
        return {}
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
