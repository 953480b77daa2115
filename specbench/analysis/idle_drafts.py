"""The warning about methods whose drafts accept next to nothing."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from specbench.analysis.warnings import RunWarning
from specbench.log.backend import BlockHeader
from specbench.types import Record

LEAST_ACCEPTING = 0.01
"""Drafts are idle if fewer than this share of drafting steps accept anything."""
LEAST_DRAFTS = 200
"""Fewest drafts that may be called idle."""


@dataclass(slots=True)
class _DraftCounts:
    """The drafts of a method at a temperature."""

    num_accepting: float = 0.0
    """Drafts with at least one accepted token."""

    num_drafts: float = 0.0


def find_idle_drafts(
    records: Iterable[Record], blocks: Iterable[BlockHeader]
) -> Iterable[RunWarning]:
    """Methods whose drafting steps accept next to nothing.

    For a server, its counters show this. If it accepts nothing at all, one draft is enough. A block
    is a group of requests that a server completed together, with the increase of its counters.
    Counts are of all drafts, and of drafts with an accepted token (`num_accepting`).
    """
    # By method and temperature: drafts that recorded steps verified, and drafts of blocks.
    recorded_counts: dict[tuple[str, float], _DraftCounts] = defaultdict(_DraftCounts)
    for record in records:
        counts = recorded_counts[record.key.method, record.key.temperature]
        # Records may have accept lengths without sizes of trees: those steps are left out.
        for length, num_nodes in zip(record.accept_lengths, record.num_nodes, strict=False):
            if num_nodes > 1:  # the step had a draft besides the root
                counts.num_drafts += 1
                counts.num_accepting += length > 1
    served_counts: dict[tuple[str, float], _DraftCounts] = defaultdict(_DraftCounts)
    for block in blocks:
        counters = block.counters
        counts = served_counts[block.method, block.temperature]
        # Drafts whose first token was accepted; without that counter, all accepted tokens.
        counts.num_accepting += counters.get("accepted_at_1", counters.get("num_accepted", 0.0))
        counts.num_drafts += counters.get("num_drafts", 0.0)
    for subject, counts in (*recorded_counts.items(), *served_counts.items()):
        # `subject`: a method and a temperature. Fewer drafts say nothing, but a server's zero does.
        least_drafts = LEAST_DRAFTS
        if subject in served_counts and not counts.num_accepting:
            least_drafts = 1
        is_idle = counts.num_accepting < LEAST_ACCEPTING * counts.num_drafts
        if is_idle and counts.num_drafts >= least_drafts:
            method, temperature = subject
            warning_numbers = {
                "method": method,
                "temperature": temperature,
                "accepting": int(counts.num_accepting),
                "drafts": int(counts.num_drafts),
            }
            yield RunWarning("idle_drafts", warning_numbers)
