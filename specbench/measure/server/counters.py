"""Counters of a server in Prometheus' text format, and how much they grew.

Engines say which of their metrics matter. Sums over labels: a server with several engines
counts for all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from specbench.measure.server.engine import load_engine
from specbench.measure.server.engines import NAMES

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SAMPLE = re.compile(rf"^([\w:]+)(?:\{{(.*)\}})? +({_NUMBER})(?=\s|$)", re.M | re.A)
"""A line: name{labels} number. A time may follow."""
_POSITION = re.compile(r'position="(\d{1,3})"', re.A)


def read_counters(text: str) -> dict[str, float]:
    """The counters known here, by our names: `accepted_at_1` is the first draft position.

    Empty for a text that is not a list of metrics.
    """
    known = {
        f"{name}:{theirs}": ours
        for name in NAMES
        for theirs, ours in load_engine(name).counters.items()
    }
    found: dict[str, float] = {}
    for name, labels, number in _SAMPLE.findall(text):
        ours = known.get(name.removesuffix("_total"))
        if ours == "accepted_at":
            position = _POSITION.search(labels)
            ours = f"accepted_at_{int(position[1]) + 1}" if position else None
        if ours:
            found[ours] = found.get(ours, 0.0) + float(number)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The growth of every counter; empty if one fell, which means that the server restarted."""
    if any(after.get(name, 0.0) < value for name, value in before.items()):
        return {}
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
