"""Warn about methods of servers whose speedup is higher than their drafts can give.

A step that drafts costs at least as much as a plain step, so the decode speedup is at most the
number of tokens that a step emits. A method above this bound was not compared fairly: its server's
flags or version differ from vanilla's, or the machine changed its speed.
"""

from collections.abc import Iterator, Mapping

from specbench.analysis.cells import CellKey, CellMetrics
from specbench.analysis.records import BASELINE
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader
from specbench.log.run import loads_of

MOST_DRIFT = 1.02
"""The factor by which equal servers may differ, since the machine changes between their blocks. The
interval of a run with one pass does not show this.
"""
MOST_PLAIN_DRIFT = 1.05
"""MOST_DRIFT for a method that drafts almost nothing. Its drafts cost almost nothing, so its
speedup is close to the bound, and any drift of the machine may lift it over the bound.
"""
LEAST_MAT = 1.1
"""With fewer tokens per step than this, a method drafts almost nothing."""


def find_impossible_speedups(
    cells: Mapping[CellKey, CellMetrics], header: RunHeader
) -> Iterator[RunWarning]:
    """Yield warnings about cells whose decode speedup is higher than their drafts can give.

    The bound is the number of tokens that a step emits (MAT, or else the longest draft + 1), times
    the allowed drift of the machine. A cell is named if the whole interval of its decode speedup is
    above the bound. Runs at request rates are left out, since vanilla's queue makes such speedups
    possible; so are runs without servers.
    """
    has_rate = any(load.request_rate for load in loads_of(header.spec.values))
    if not header.servers or has_rate:
        return
    for key, cell in cells.items():
        if key.method == BASELINE or not isinstance(cell.decode_speedup, Estimate):
            continue
        interval = cell.decode_speedup.interval  # None with too few samples
        tokens_per_step = _tokens_per_step(cell, header, key.method)  # 0: unknown
        # the factor by which equal servers may differ; larger for a method that hardly drafts
        drift = MOST_DRIFT if tokens_per_step >= LEAST_MAT else MOST_PLAIN_DRIFT
        if interval and tokens_per_step and interval.low > drift * tokens_per_step:
            numbers = {
                "method": key.method,
                "temperature": key.temperature,
                "task": key.task,
                "least": interval.low,
                "tokens": tokens_per_step,
            }
            yield RunWarning("impossible_speedup", numbers)


def _tokens_per_step(cell: CellMetrics, header: RunHeader, method: str) -> float:
    """Return the cell's mean tokens per step (MAT), or else a step's most tokens; 0 if unknown."""
    if isinstance(cell.mat, Estimate):
        return cell.mat.value
    method_header = header.methods.get(method)
    # the method's option for the number of draft tokens
    draft_length = method_header.options.get("num_tokens") if method_header else None
    return draft_length + 1.0 if isinstance(draft_length, int) else 0.0
