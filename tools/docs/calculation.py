"""Make the calculation in docs/measurements/gpu.md from a run's step costs and published MATs.

    speedup of decoding = published MAT / step cost

A dynamic tree may have more levels than the published tree. Its step cost is then reduced by the
least time that the other levels take, which is the time to read the draft model's layer and head
once per level at the nominal bandwidth.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from specbench.analysis.stats.estimates import Estimate
from specbench.report.results import Report
from tools.docs.bandwidth import nominal_bandwidth

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "spec_bench.csv"
MODEL = "vicuna-13b"
LEVELS = {"eagle2": 6, "eagle3": 6}
"""Levels of the dynamic trees that gave the published MAT."""
_HEADER = (
    "| | step cost, H100 | MAT, Spec-Bench | calculated, decoding | Spec-Bench, A100 |\n"
    "|---|---:|---:|---:|---:|"
)


class _Published(NamedTuple):
    """The numbers of a method over all questions of Spec-Bench."""

    speedup: str
    mat: str


def calculation(report: Report) -> str:
    """Return the table in Markdown, with the methods that Spec-Bench also has, best first."""
    published = dict(_read_published())
    rows = []
    for method in report.blocks[0].methods:
        if method.method not in published:
            continue
        speedup, mat = published[method.method]
        saved = _saved_cost(report, method.method)
        relative_cost = method.cost.relative
        assert isinstance(relative_cost, Estimate)
        cost = relative_cost.value - saved
        note = ", estimated" if saved else ""
        calculated = float(mat) / cost
        text = f"| {method.label} | {cost:.2f}{note} | {mat} | {calculated:.2f}x | {speedup}x |"
        rows.append((calculated, text))
    return "\n".join([_HEADER, *(text for _, text in sorted(rows, reverse=True))])


def _read_published() -> Iterator[tuple[str, _Published]]:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            is_overall = row["task"] == "spec_bench" and row["table"] == "a100"
            is_greedy = float(row["temperature"]) == 0
            if is_overall and is_greedy and row["model"] == MODEL:
                yield row["method"], _Published(row["speedup"], row["mean_accepted_tokens"])


def _saved_cost(report: Report, method: str) -> float:
    """Return the least cost of levels beyond those of the published tree, in steps of vanilla."""
    (source,) = report.sources
    roofline = source.info.roofline
    vanilla_step_s = source.metrics.cost("vanilla", 0.0).step_s
    if method not in LEVELS or roofline is None:
        return 0.0
    assert isinstance(vanilla_step_s, Estimate)
    num_levels = source.info.methods[method].options["depth"] + 1
    bytes_per_level = roofline.draft_bytes[method] / num_levels
    level_s = bytes_per_level / nominal_bandwidth(report)
    saved: float = (num_levels - LEVELS[method]) * level_s / vanilla_step_s.value
    return saved
