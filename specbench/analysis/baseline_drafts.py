"""Drafts of vanilla's server, which should make none: a run with such a baseline has no speedup.
The run is stopped when drafts show, but the records of its earlier blocks remain.
"""

from collections.abc import Iterator, Sequence

from specbench.analysis.records import BASELINE
from specbench.analysis.stats.estimates import Missing
from specbench.analysis.warnings import RunWarning
from specbench.log.backend import counted_drafts
from specbench.log.header import RunHeader
from specbench.types import Record

BASELINE_DRAFTS = Missing("the server of vanilla drafted")


def count_baseline_drafts(header: RunHeader, records: Sequence[Record]) -> int | None:
    """Drafts of vanilla's server by its counters, else by its answers; None without counts.

    Counters without drafts mean that the server does not speculate: engines report drafts once they
    draft. Files of other tools give no count.
    """
    if header.imported:
        return None
    blocks = [block for block in header.blocks if block.method == BASELINE]
    num_by_counters = sum(counted_drafts(block.counters) for block in blocks)
    answer_counts = [
        record.serving.num_drafts
        for record in records
        if record.key.method == BASELINE and record.serving
    ]
    num_by_answers = sum(num_drafts or 0 for num_drafts in answer_counts)
    has_counts = any(block.counters for block in blocks) or any(
        num_drafts is not None for num_drafts in answer_counts
    )
    return max(num_by_counters, num_by_answers) if has_counts else None


def find_baseline_drafts(header: RunHeader, records: Sequence[Record]) -> Iterator[RunWarning]:
    """The warning about a server of vanilla that drafted."""
    num_drafts = count_baseline_drafts(header, records)
    if num_drafts:
        yield RunWarning("baseline_drafts", {"drafts": num_drafts})
