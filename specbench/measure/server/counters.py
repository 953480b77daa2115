"""The counters of a server, in Prometheus' text format, and how much they grew.

Engines say which of their metrics matter. Values are summed over labels, so that a server with
several engines counts for all of them.
"""

import math
import re
from collections.abc import Mapping

from specbench.measure.server import NAMES
from specbench.measure.server.engine import load_engine

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SAMPLE = re.compile(rf"^([\w:]+)(?:\{{(.*)\}})? +({_NUMBER})(?=\s|$)", re.M | re.A)
"""A line: name{labels} number. A time may follow."""
_POSITION = re.compile(r'position="(\d{1,3})"', re.A)


def read_counters(text: str) -> dict[str, float]:
    """The counts of a server since its start, by our names of the counters.

    For example, `num_drafts`; `accepted_at_1` counts accepted tokens at the first position of
    drafts. `text` has Prometheus' format: lines such as `vllm:name_total{position="0"} 12`.
    Metrics without a name of ours are left out, and those with the same one are added up. Empty
    for a text that is not a list of metrics.
    """
    our_names = {  # our names of counters by metric, such as `vllm:spec_decode_num_drafts`
        f"{engine}:{metric}": counter
        for engine in NAMES  # of all engines, such as vllm
        for metric, counter in load_engine(engine).counters.items()
    }
    counters: dict[str, float] = {}
    # The three groups of each line that is a metric. `labels` is the text in braces.
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
