"""Compute acceptance from a server's counts: MAT, steps with a draft, acceptance at each position.

The engine's MAT is 1 + accepted draft tokens / drafts. It leaves out steps without a draft, but
includes tokens accepted beyond the end of an answer. Counters that include other requests, or
failed ones, give no number.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import UNSET

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.backend import BlockHeader
from specbench.types import Record

NO_COUNTS = Missing("the server reports no drafts")
OTHERS = Missing("the server's counters include other requests")
HAS_FAILED = Missing("the server's counters include failed requests")

_POSITION = "accepted_at_"
"""The prefix of the counters of accepted tokens by draft position, such as "accepted_at_1"."""
_LEAST_OWN = 0.98
"""At least this share of the tokens that a server counted must belong to this run."""


def counter_total(blocks: Iterable[BlockHeader], name: str) -> float:
    """Add up the increase of the server's counter with this name over these blocks."""
    return sum(block.counters.get(name, 0.0) for block in blocks)


def mean_draft_length(blocks: Sequence[BlockHeader]) -> float:
    """Compute the mean number of tokens per draft from the server's counters; 0 if unknown."""
    num_drafts = counter_total(blocks, "num_drafts")
    return counter_total(blocks, "num_draft_tokens") / num_drafts if num_drafts else 0.0


def mat_of_blocks(blocks: Iterable[BlockHeader]) -> Value:
    """Compute the MAT of a server's blocks (tokens emitted by steps / steps) from its counters.

    A block is a group of requests that the server completed together, with the increase of its
    counters; blocks without a count of accepted draft tokens are left out. MAT is missing if no
    block is left, or if the counters include other or failed requests.
    """
    counting_blocks = [block for block in blocks if "num_accepted" in block.counters]
    if not counting_blocks:
        return NO_COUNTS
    # None if the counters cover only these requests
    if problem := _counters_problem(counting_blocks):
        return problem
    # Without the first token of each request, which the prefill emits.
    num_emitted = sum(block.num_tokens - block.num_requests for block in counting_blocks)
    num_accepted = counter_total(counting_blocks, "num_accepted")
    # A step emits its accepted tokens and one more, and has at most one draft.
    num_steps = max(num_emitted - num_accepted, counter_total(counting_blocks, "num_drafts"))
    return Estimate(num_emitted / num_steps) if num_steps > 0 else NO_COUNTS


def engine_mat(blocks: Sequence[BlockHeader], done: Sequence[Record]) -> Value:
    """Compute 1 + accepted draft tokens / drafts, as engines define MAT.

    The counts are those that came with the answers (`done`, the completed records). If these have
    no drafts, the server's counters are used, unless they include other or failed requests. A block
    is a group of requests that the server completed together, with the increase of its counters.
    The result is missing if there are no drafts, or no counters to use.
    """
    # the counts that came with each answer that has drafts
    drafting_answers = [
        record.serving for record in done if record.serving and record.serving.num_drafts
    ]
    num_drafts = sum(answer.num_drafts or 0 for answer in drafting_answers)
    num_accepted = float(sum(answer.num_accepted or 0 for answer in drafting_answers))
    if num_drafts:
        return Estimate(1 + num_accepted / num_drafts)
    drafting_blocks = [block for block in blocks if block.counters.get("num_drafts")]
    # None if the counters cover only these requests, or count no drafts
    problem = _counters_problem(drafting_blocks) if drafting_blocks else None
    if problem:
        return problem
    num_counted_drafts = int(counter_total(drafting_blocks, "num_drafts"))
    if not num_counted_drafts:
        return NO_COUNTS
    return Estimate(1 + counter_total(drafting_blocks, "num_accepted") / num_counted_drafts)


def drafting_share(
    blocks: Sequence[BlockHeader], done: Sequence[Record], steps: FloatArray
) -> float | None:
    """Compute the share of steps with a draft, from counts of answers or else of the server.

    None if neither gives it. `done` are the completed records, and `steps` has the number of steps
    of each, 0 if unknown. A block is a group of requests that the server completed together, with
    the increase of its counters.
    """
    # Both sums are over the answers with a count of drafts and known steps.
    num_drafts = 0.0
    num_steps = 0.0
    for record, record_steps in zip(done, steps, strict=True):
        if record.serving and record.serving.num_drafts is not None and record_steps:
            num_drafts += record.serving.num_drafts
            num_steps += record_steps
    if num_steps:
        return float(num_drafts / num_steps)
    counting_blocks = [
        block for block in blocks if {"num_drafts", "num_accepted"} <= block.counters.keys()
    ]
    mat = mat_of_blocks(counting_blocks)
    if isinstance(mat, Missing) or not mat.value:  # no step emitted a token
        return None
    # Without the first token of each request, which the prefill emits. Steps = emitted / MAT.
    num_emitted = sum(block.num_tokens - block.num_requests for block in counting_blocks)
    return counter_total(counting_blocks, "num_drafts") * mat.value / num_emitted


class LengthShare(NamedTuple):
    """The share of drafts of one length."""

    num_tokens: int
    """The length: number of tokens of a draft."""
    share: float
    """Steps with a draft of this length / all steps."""


def draft_lengths(done: Sequence[Record], steps: FloatArray) -> tuple[LengthShare, ...]:
    """List the lengths of drafts, each with its share of steps, the most frequent first.

    The list is empty if no answer lists its drafts. `done` are the completed records, and `steps`
    has the number of steps of each, 0 if unknown. Only answers that list drafts and have known
    steps count.
    """
    num_by_length: Counter[int] = Counter()  # tokens of a draft -> number of drafts
    num_steps = 0.0
    for record, record_steps in zip(done, steps, strict=True):
        # the number of drafts with 1 token, with 2 tokens, and so on
        histogram = record.serving.drafts_by_length if record.serving else UNSET
        if histogram is not UNSET and record_steps:
            num_by_length.update(dict(enumerate(histogram, start=1)))
            num_steps += float(record_steps)
    return tuple(
        LengthShare(length, num_drafts / num_steps)
        for length, num_drafts in num_by_length.most_common()
        if num_drafts
    )


def acceptance_rates(
    blocks: Sequence[BlockHeader], done: Sequence[Record] = ()
) -> tuple[float, ...]:
    """Divide accepted tokens at each draft position by drafts: a rate for position 1, 2 and so on.

    The numbers come from the server's counters. Without a counter of drafts, they come from the
    completed records `done`. The result is empty if neither counts them, or if the counters include
    other or failed requests. A block is a group of requests that the server completed together,
    with the increase of its counters.
    """
    if not counter_total(blocks, "num_drafts"):
        return _rates_of_answers(done)
    if _counters_problem(blocks):  # the counters include other or failed requests
        return ()
    return rates_by_position(blocks)


def rates_by_position(blocks: Sequence[BlockHeader]) -> tuple[float, ...]:
    """Divide accepted tokens at each draft position by drafts, with the counters of a server.

    Rate i is the share of drafts whose first i tokens were all accepted. The result is empty if the
    server made no draft, or does not count accepted tokens by position.
    """
    num_drafts = counter_total(blocks, "num_drafts")
    if not num_drafts:
        return ()
    counter_names = {name for block in blocks for name in block.counters}
    num_positions = sum(name.startswith(_POSITION) for name in counter_names)
    return tuple(
        counter_total(blocks, f"{_POSITION}{position}") / num_drafts
        for position in range(1, num_positions + 1)
    )


def _rates_of_answers(done: Sequence[Record]) -> tuple[float, ...]:
    """Divide accepted tokens at each position by drafts, from the histograms of completed records.

    There is a rate for each position from 1 to the most accepted tokens of a draft. A draft with 3
    accepted tokens has them at the positions 1, 2 and 3.
    """
    num_by_accepted: Counter[int] = Counter()  # accepted tokens of a draft -> number of drafts
    for record in done:
        # the number of drafts with 0 accepted tokens, with 1, and so on
        histogram = record.serving.drafts_by_accepted if record.serving else UNSET
        if histogram is not UNSET:
            num_by_accepted.update(dict(enumerate(histogram)))
    num_drafts = num_by_accepted.total()
    most_accepted = max((accepted for accepted, num in num_by_accepted.items() if num), default=0)
    return tuple(
        sum(num for accepted, num in num_by_accepted.items() if accepted >= position) / num_drafts
        for position in range(1, most_accepted + 1)
    )


def _counters_problem(blocks: Sequence[BlockHeader]) -> Missing | None:
    """Return the reason why counters do not cover exactly the blocks' answers; None if they do.

    Either a request failed, or the counters have clearly more tokens than these answers.
    """
    if any(block.num_failed for block in blocks):
        return HAS_FAILED
    num_received_tokens = sum(block.num_tokens for block in blocks)
    num_counted_tokens = sum(block.counters.get("num_tokens", block.num_tokens) for block in blocks)
    return OTHERS if num_received_tokens < _LEAST_OWN * num_counted_tokens else None
