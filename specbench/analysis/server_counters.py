"""Acceptance by a server's counters: MAT, and the share of drafts accepted at each position.

The engine's MAT is 1 + accepted draft tokens / drafts. Steps without a draft do not count, and
tokens accepted beyond the end of an answer do. Counters that include other requests, or failed
ones, give no number.
"""

from collections.abc import Iterable, Sequence
from itertools import count

from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.backend import BlockHeader
from specbench.types import Record

NO_COUNTS = Missing("the server reports no drafts")
OTHERS = Missing("the server's counters count other requests too")
HAS_FAILED = Missing("requests failed, and the server's counters count them")

_LEAST_OWN = 0.98
"""Least share of a server's counted tokens that must be this run's."""


def counter_total(blocks: Iterable[BlockHeader], name: str) -> float:
    """The increase of a counter of the server in these blocks."""
    return sum(block.counters.get(name, 0.0) for block in blocks)


def mat_of_blocks(blocks: Iterable[BlockHeader]) -> Value:
    """MAT from the server's counters, for servers that report no draft of a single request."""
    counted = [block for block in blocks if "num_accepted" in block.counters]
    if not counted:
        return NO_COUNTS
    problem = _counters_problem(counted)
    if problem:
        return problem
    # The first token of each request is the prefill's.
    num_emitted = sum(block.num_tokens - block.num_requests for block in counted)
    num_accepted = counter_total(counted, "num_accepted")
    num_steps = max(num_emitted - num_accepted, counter_total(counted, "num_drafts"))
    return Estimate(num_emitted / num_steps) if num_steps > 0 else NO_COUNTS


def engine_mat(blocks: Sequence[BlockHeader], done: Sequence[Record]) -> Value:
    """1 + accepted / drafts, as counted for each answer, else by the server's counters."""
    counts = [record.serving for record in done if record.serving and record.serving.num_drafts]
    num_drafts = sum(answer.num_drafts or 0 for answer in counts)
    num_accepted = float(sum(answer.num_accepted or 0 for answer in counts))
    if num_drafts:
        return Estimate(1 + num_accepted / num_drafts)
    drafting = [block for block in blocks if block.counters.get("num_drafts")]
    problem = _counters_problem(drafting) if drafting else None
    if problem:
        return problem
    num_drafts = int(counter_total(drafting, "num_drafts"))
    if not num_drafts:
        return NO_COUNTS
    return Estimate(1 + counter_total(drafting, "num_accepted") / num_drafts)


def acceptance_rates(blocks: Sequence[BlockHeader]) -> tuple[float, ...]:
    """Accepted tokens at each draft position / drafts [positions], by the server's counters.

    Empty without counters, or if they count other requests too.
    """
    num_drafts = counter_total(blocks, "num_drafts")
    if not num_drafts or _counters_problem(blocks):
        return ()
    counters = {name for block in blocks for name in block.counters}
    rates = []
    for position in count(1):
        name = f"accepted_at_{position}"
        if name not in counters:
            break
        rates.append(counter_total(blocks, name) / num_drafts)
    return tuple(rates)


def _counters_problem(blocks: Sequence[BlockHeader]) -> Missing | None:
    """The reason why counters include more than the blocks' answers; None if they do not."""
    if any(block.num_failed for block in blocks):
        return HAS_FAILED
    num_own = sum(block.num_tokens for block in blocks)
    num_counted = sum(block.counters.get("num_tokens", block.num_tokens) for block in blocks)
    return OTHERS if num_own < _LEAST_OWN * num_counted else None
