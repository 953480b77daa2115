"""The warning about methods whose drafts are hardly ever accepted."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader
from specbench.types import Record, RequestKey

LEAST_ACCEPTING = 0.01
"""Drafts are idle if fewer than this share of drafting steps accept anything."""
LEAST_DRAFTS = 200
"""Fewest drafts that may be called idle."""
LEAST_TRAINED_DRAFTS = 32
"""Fewest drafts of trained weights that may be called idle if none was accepted. Honest heads began
with at most 6 steps that accepted nothing, look-ups with up to 48.
"""
LEAST_ANSWERS = 2
"""Fewest requests that these drafts of trained weights have to come from."""


@dataclass(slots=True)
class _DraftCounts:
    """The drafts of a method at a temperature."""

    num_accepting: float = 0.0
    """Drafts with at least one accepted token."""

    num_drafts: float = 0.0
    drafts_by_request: dict[RequestKey, int] = field(default_factory=dict)
    """Drafts of the first answer to each request. Answers in later passes and at other loads do not
    count, since they may be copies of the first.
    """


def find_idle_drafts(records: Iterable[Record], header: RunHeader) -> Iterable[RunWarning]:
    """Methods whose drafting steps accept next to nothing.

    Fewer steps are enough for methods that draft with trained weights alone, if nothing was
    accepted. Drafts of a server are those of its counters: if none was accepted, one draft is
    enough. A block is a group of requests that a server completed together, with the increase of
    its counters. Counts are of all drafts, and of drafts with an accepted token (`num_accepting`).
    """
    # By method and temperature: drafts that recorded steps verified, and drafts of blocks.
    recorded_counts: dict[tuple[str, float], _DraftCounts] = defaultdict(_DraftCounts)
    for record in records:
        counts = recorded_counts[record.key.method, record.key.temperature]
        # Records may have accept lengths without sizes of trees: those steps are left out.
        steps = zip(record.accept_lengths, record.num_nodes, strict=False)
        lengths = [length for length, num_nodes in steps if num_nodes > 1]  # not only the root
        counts.num_drafts += len(lengths)
        counts.num_accepting += sum(length > 1 for length in lengths)
        request = record.key.request._replace(repeat=0, concurrency=0, request_rate=0)
        if lengths:
            counts.drafts_by_request.setdefault(request, len(lengths))
    served_counts: dict[tuple[str, float], _DraftCounts] = defaultdict(_DraftCounts)
    for block in header.blocks:
        counters = block.counters
        counts = served_counts[block.method, block.temperature]
        # Drafts whose first token was accepted; without that counter, all accepted tokens.
        counts.num_accepting += counters.get("accepted_at_1", counters.get("num_accepted", 0.0))
        counts.num_drafts += counters.get("num_drafts", 0.0)
    trained = [label for label, about in header.methods.items() if about.has_trained_drafts]
    for subject, counts in (*recorded_counts.items(), *served_counts.items()):
        method, temperature = subject
        drafts = counts.drafts_by_request
        has_enough = len(drafts) >= LEAST_ANSWERS and sum(drafts.values()) >= LEAST_TRAINED_DRAFTS
        least_drafts = LEAST_DRAFTS  # fewer drafts prove nothing, with the exceptions below
        if subject in served_counts and not counts.num_accepting:
            least_drafts = 1
        elif method in trained and has_enough and not counts.num_accepting:
            least_drafts = LEAST_TRAINED_DRAFTS
        is_idle = counts.num_accepting < LEAST_ACCEPTING * counts.num_drafts
        if is_idle and counts.num_drafts >= least_drafts:
            warning_numbers = {
                "method": method,
                "temperature": temperature,
                "accepting": int(counts.num_accepting),
                "drafts": int(counts.num_drafts),
            }
            yield RunWarning("idle_drafts", warning_numbers)
