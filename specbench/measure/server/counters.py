"""Counters of a server in Prometheus' text format, and how much they grew.

Engines say which of their metrics matter. Sums over labels: a server with several engines counts
for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from specbench.measure.server.engine import load_engine
from specbench.measure.server.engines import NAMES


def read_counters(text: str) -> dict[str, float]:
    """The counters known here, by our names: `accepted_at_1` is the first draft position.

    Empty for a text that is not a list of metrics.
    """
    from prometheus_client.parser import text_string_to_metric_families

    known = {
        f"{name}:{theirs}": ours
        for name in NAMES
        for theirs, ours in load_engine(name).counters.items()
    }
    found: dict[str, float] = {}
    try:
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    except ValueError:
        return {}
    for sample in samples:
        ours = known.get(sample.name.removesuffix("_total"))
        if ours == "accepted_at":
            position = sample.labels.get("position", "")
            ours = f"accepted_at_{int(position) + 1}" if position.isdigit() else None
        if ours and math.isfinite(sample.value):
            found[ours] = found.get(ours, 0.0) + sample.value
    return found


def increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The growth of every counter; empty if one fell, which means that the server restarted."""
    if any(after.get(name, 0.0) < value for name, value in before.items()):
        return {}
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
