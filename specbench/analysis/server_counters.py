"""Acceptance by a server's counts: MAT, steps with a draft, and acceptance at each position.

The engine's MAT is 1 + accepted draft tokens / drafts. Steps without a draft do not count, and
tokens accepted beyond the end of an answer do. Counters that include other requests, or failed
ones, give no number.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from msgspec import UNSET

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.backend import BlockHeader
from specbench.types import Record

NO_COUNTS = Missing("the server reports no drafts")
OTHERS = Missing("the server's counters count other requests too")
HAS_FAILED = Missing("requests failed, and the server's counters count them")

_LEAST_OWN = 0.98
"""Smallest share of a server's counted tokens that must be this run's."""


def counter_total(blocks: Iterable[BlockHeader], name: str) -> float:
    """The increase of a counter of the server in these blocks."""
    return sum(block.counters.get(name, 0.0) for block in blocks)


def mat_of_blocks(blocks: Iterable[BlockHeader]) -> Value:
    """MAT from the server's counters, for servers that do not report the drafts of single requests.

    A block is a group of requests that a server completed together, with the increase of its
    counters. MAT is tokens emitted by steps / steps; Missing with the reason if the counters do not
    give it. `num_accepted` counts accepted draft tokens, `num_drafts` drafts.
    """
    counting_blocks = [block for block in blocks if "num_accepted" in block.counters]
    if not counting_blocks:
        return NO_COUNTS
    # the reason if the counters count other requests too; None if they do not
    problem = _counters_problem(counting_blocks)
    if problem:
        return problem
    # The first token of each request is the prefill's.
    num_emitted = sum(block.num_tokens - block.num_requests for block in counting_blocks)
    num_accepted = counter_total(counting_blocks, "num_accepted")
    # A step emits the accepted tokens and one more, and drafts at most once.
    num_steps = max(num_emitted - num_accepted, counter_total(counting_blocks, "num_drafts"))
    return Estimate(num_emitted / num_steps) if num_steps > 0 else NO_COUNTS


def engine_mat(blocks: Sequence[BlockHeader], done: Sequence[Record]) -> Value:
    """1 + accepted / drafts: by the counts of each answer, or else by the server's counters.

    `done` are completed records; a block is a group of requests that the server completed together,
    with the increase of its counters. `accepted` counts draft tokens. `Missing` has the reason if
    there is no number.
    """
    # a server's figures of each answer that it counted drafts of
    counted_answers = [
        record.serving for record in done if record.serving and record.serving.num_drafts
    ]
    num_drafts = sum(answer.num_drafts or 0 for answer in counted_answers)
    num_accepted = float(sum(answer.num_accepted or 0 for answer in counted_answers))
    if num_drafts:
        return Estimate(1 + num_accepted / num_drafts)
    drafting_blocks = [block for block in blocks if block.counters.get("num_drafts")]
    # the reason if the counters count other requests too; None if they do not
    problem = _counters_problem(drafting_blocks) if drafting_blocks else None
    if problem:
        return problem
    num_drafts = int(counter_total(drafting_blocks, "num_drafts"))
    if not num_drafts:
        return NO_COUNTS
    return Estimate(1 + counter_total(drafting_blocks, "num_accepted") / num_drafts)


def drafting_share(
    blocks: Sequence[BlockHeader], done: Sequence[Record], steps: FloatArray
) -> float | None:
    """Steps with a draft / all steps, by the counts of answers, else by the server's counters.

    `steps` are those of the completed records `done` [done], 0 if unknown. None if it is unknown.
    """
    num_drafts = 0.0
    num_steps = 0.0
    for record, record_steps in zip(done, steps, strict=True):
        if record.serving and record.serving.num_drafts is not None:
            num_drafts += record.serving.num_drafts
            num_steps += record_steps
    if num_steps:
        return float(num_drafts / num_steps)
    mat = mat_of_blocks(blocks)
    if isinstance(mat, Missing):
        return None
    num_emitted = sum(block.num_tokens - block.num_requests for block in blocks)
    return counter_total(blocks, "num_drafts") * mat.value / num_emitted


class LengthShare(NamedTuple):
    """Drafts of one length."""

    num_tokens: int
    """Tokens of a draft."""
    share: float
    """Steps with a draft of this length / all steps."""


def draft_lengths(done: Sequence[Record], steps: FloatArray) -> tuple[LengthShare, ...]:
    """The lengths of drafts, the most frequent first; empty if no answer lists its drafts.

    `steps` are those of the completed records `done` [done], 0 if unknown.
    """
    num_by_length: Counter[int] = Counter()
    num_steps = 0.0
    for record, record_steps in zip(done, steps, strict=True):
        by_length = record.serving.drafts_by_length if record.serving else UNSET
        if by_length is not UNSET and record_steps:
            num_by_length.update(dict(enumerate(by_length, start=1)))
            num_steps += float(record_steps)
    return tuple(
        LengthShare(length, num_drafts / num_steps)
        for length, num_drafts in num_by_length.most_common()
        if num_drafts
    )


def acceptance_rates(
    blocks: Sequence[BlockHeader], done: Sequence[Record] = ()
) -> tuple[float, ...]:
    """Accepted tokens at each draft position / drafts [positions].

    By the server's counters, where the counter `accepted_at_2` is of second draft tokens; else by
    the histograms of the completed records `done`. Empty without either, or if the counters count
    other requests too. A block is a group of requests that the server completed together.
    """
    num_drafts = counter_total(blocks, "num_drafts")
    if not num_drafts:
        return _rates_of_answers(done)
    if _counters_problem(blocks):  # counters of other requests too
        return ()
    counter_names = {name for block in blocks for name in block.counters}
    rates = []
    for position in count(1):
        name = f"accepted_at_{position}"
        if name not in counter_names:
            break
        rates.append(counter_total(blocks, name) / num_drafts)
    return tuple(rates)


def _rates_of_answers(done: Sequence[Record]) -> tuple[float, ...]:
    """Accepted tokens at each draft position / drafts [positions], by the histograms of answers.

    A draft with 3 accepted tokens has them at the positions 1, 2 and 3.
    """
    num_by_accepted: Counter[int] = Counter()
    for record in done:
        histogram = record.serving.drafts_by_accepted if record.serving else UNSET
        if histogram is not UNSET:
            num_by_accepted.update(dict(enumerate(histogram)))
    num_drafts = num_by_accepted.total()
    most_accepted = max((length for length, num in num_by_accepted.items() if num), default=0)
    return tuple(
        sum(num for length, num in num_by_accepted.items() if length >= position) / num_drafts
        for position in range(1, most_accepted + 1)
    )


def _counters_problem(blocks: Sequence[BlockHeader]) -> Missing | None:
    """The reason if counters include more than the blocks' answers; None if they do not."""
    if any(block.num_failed for block in blocks):
        return HAS_FAILED
    num_own = sum(block.num_tokens for block in blocks)
    num_counted = sum(block.counters.get("num_tokens", block.num_tokens) for block in blocks)
    return OTHERS if num_own < _LEAST_OWN * num_counted else None
