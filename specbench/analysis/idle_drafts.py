"""Warn about methods whose drafts are hardly ever accepted."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader
from specbench.types import Record, RequestKey

LEAST_ACCEPTING = 0.01
"""Drafts are idle if less than this share of them have an accepted token."""
LEAST_DRAFTS = 200
"""The fewest drafts that may be called idle."""
LEAST_TRAINED_DRAFTS = 32
"""The fewest drafts with trained weights that may be called idle if none was accepted. In honest
runs, draft heads had their first accepted token after at most 6 steps, and look-ups (without
weights) after at most 48.
"""
LEAST_REQUESTS = 2
"""The LEAST_TRAINED_DRAFTS must come from at least this many requests."""


@dataclass(slots=True)
class _DraftCounts:
    """The drafts of a method at a temperature."""

    num_accepting: float = 0.0
    """The number of drafts with at least one accepted token."""

    num_drafts: float = 0.0
    drafts_by_request: dict[RequestKey, int] = field(default_factory=dict)
    """The number of drafts in the first answer to each request. Answers in later passes and at
    other loads do not count, since they may be copies of the first.
    """


def find_idle_drafts(records: Iterable[Record], header: RunHeader) -> Iterable[RunWarning]:
    """Yield warnings about methods whose drafts hardly ever have an accepted token.

    A warning needs LEAST_DRAFTS drafts of a method at a temperature, of which less than
    LEAST_ACCEPTING have an accepted token. If no token at all was accepted, fewer are enough. One
    draft is enough if a server's counters count it. For a method that drafts only with trained
    weights, LEAST_TRAINED_DRAFTS drafts in the first answers to LEAST_REQUESTS requests are enough.
    """
    # (method, temperature) -> drafts in the steps of `records`, and (below) drafts that servers
    # counted. Answers of servers list no trees, so their methods have 0 here.
    recorded_counts: dict[tuple[str, float], _DraftCounts] = defaultdict(_DraftCounts)
    for record in records:
        counts = recorded_counts[record.key.method, record.key.temperature]
        emitted = emitted_after_drafts(record)  # tokens of each step with a draft
        counts.num_drafts += len(emitted)
        counts.num_accepting += sum(num_emitted > 1 for num_emitted in emitted)
        # the same for all passes and loads, so that only the first answer with a draft is kept
        request = record.key.request._replace(repeat=0, concurrency=0, request_rate=0)
        if emitted:
            counts.drafts_by_request.setdefault(request, len(emitted))
    served_counts: dict[tuple[str, float], _DraftCounts] = defaultdict(_DraftCounts)
    for block in header.blocks:  # requests that a server completed together
        counters = block.counters  # name -> increase during the block
        counts = served_counts[block.method, block.temperature]
        # Drafts whose first token was accepted; without that counter, all accepted tokens.
        counts.num_accepting += counters.get("accepted_at_1", counters.get("num_accepted", 0.0))
        counts.num_drafts += counters.get("num_drafts", 0.0)
    trained_methods = [
        method for method, about in header.methods.items() if about.has_trained_drafts
    ]
    for subject, counts in (*recorded_counts.items(), *served_counts.items()):
        method, temperature = subject
        drafts = counts.drafts_by_request  # numbers of drafts in the first answer to each request
        has_enough = len(drafts) >= LEAST_REQUESTS and sum(drafts.values()) >= LEAST_TRAINED_DRAFTS
        least_drafts = LEAST_DRAFTS
        if subject in served_counts and not counts.num_accepting:
            least_drafts = 1
        elif method in trained_methods and has_enough and not counts.num_accepting:
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


def emitted_after_drafts(record: Record) -> list[int]:
    """List the tokens that each step with a draft emitted.

    A step has a draft if its tree has more nodes than the root. A step whose tree has an unknown
    size is left out.
    """
    steps = zip(record.accept_lengths, record.num_nodes, strict=False)
    return [num_emitted for num_emitted, num_nodes in steps if num_nodes > 1]
