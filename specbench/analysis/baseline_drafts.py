"""Find drafts of vanilla's server, which should make none. A baseline that drafts gives no speedup.

A run stops when it sees such drafts, but the records of its earlier blocks remain.
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
    """Count the drafts (or draft tokens) of vanilla's server in a run; None if nothing counts them.

    There are two sums, and the result is the larger one. The first adds up the server's counters
    over blocks, which are groups of requests that it completed together. The second adds up the
    drafts that vanilla's answers (`records`) report. A block adds the largest counter that grows
    with drafts only: drafts, draft tokens, accepted tokens or verify calls. A block whose counters
    mention no drafts adds 0, since engines report drafts once they draft. The result is None for
    runs that were imported from other tools.
    """
    if header.imported:
        return None
    blocks = [block for block in header.blocks if block.method == BASELINE]
    num_by_counters = sum(counted_drafts(block.counters) for block in blocks)
    drafts_of_answers = [  # drafts of each of vanilla's answers; None if the server counted none
        record.serving.num_drafts
        for record in records
        if record.key.method == BASELINE and record.serving
    ]
    num_by_answers = sum(num_drafts or 0 for num_drafts in drafts_of_answers)
    has_counts = any(block.counters for block in blocks) or any(
        num_drafts is not None for num_drafts in drafts_of_answers
    )
    return max(num_by_counters, num_by_answers) if has_counts else None


def find_baseline_drafts(header: RunHeader, records: Sequence[Record]) -> Iterator[RunWarning]:
    """Yield a warning if vanilla's server drafted."""
    num_drafts = count_baseline_drafts(header, records)
    if num_drafts:
        yield RunWarning("baseline_drafts", {"drafts": num_drafts})
