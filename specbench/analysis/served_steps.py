"""Compute the steps of answers whose server does not list them, from the counts of the server.

A step emits the accepted tokens and one more, so the counts of tokens and of accepted tokens
give the steps. If the last accepted token of an answer was an end token, its step emitted no
further token, so the answer took one step more than the counts give. No count tells which answers
these are. If every step has a draft, the number of drafts of a block is its number of steps.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench.analysis.grouping import group_by
from specbench.log.backend import BlockHeader
from specbench.log.run import BlockKey, block_key
from specbench.types import Record

_TOO_MANY = (
    "the server counts {:g} more drafts than its answers have steps, but at most {} answers ended "
    "with a draft token"
)


@dataclass(frozen=True, slots=True)
class ServedSteps:
    """The steps of records, as far as they are known."""

    emitted: Sequence[int]
    """The tokens that steps emitted [records]; 0 if unknown."""

    steps: Sequence[float]
    """The numbers of steps [records]; 0 if unknown. If the counters of a block show more drafts
    than the steps that its answers imply, the difference is spread evenly over the answers that may
    have taken one step more.
    """

    more: Sequence[int]
    """1 for an answer that may have taken one step more than in `steps`, else 0 [records]."""

    contradictions: Mapping[BlockKey, str]
    """Key of a block without listed steps -> a sentence about the contradiction in its counts."""

    has_drafts: Sequence[bool | None]
    """True if drafts were made for an answer, or in its block if it has no counts of its own; None
    if that is unknown [records].
    """


def served_steps(records: Sequence[Record], blocks: Sequence[BlockHeader]) -> ServedSteps:
    """Find the steps of records: those that are listed, or those that their server's counts imply.

    A block is a group of requests that a server completed together, with the increase of its
    counters. It has several parts if the run was continued. If the counters show more drafts than
    the steps that the block's answers imply, the difference is spread over the answers that may
    have taken one step more. If the counts of a block contradict each other, its steps are unknown,
    and `contradictions` says why. `record.serving` is None for specbench's own engine.
    """
    blocks_by_key = group_by(blocks, key=block_key)
    # Servers such as llama.cpp count accepted tokens but no drafts, and send no counts at all with
    # an answer without drafts. With other servers, an answer without counts has unknown steps.
    silent_methods = {
        record.key.method
        for record in records
        if _num_accepted(record) is not None and _num_drafts_of(record) is None
    }
    # For each record: tokens that steps emitted; steps; 1 if one more step is possible; True if it
    # had drafts, or None if that is unknown.
    num_emitted: list[int] = []
    num_steps: list[float] = []
    num_more = [0] * len(records)
    has_drafts: list[bool | None] = []
    # key of a block -> numbers of the records whose server does not list their steps
    unlisted_rows: dict[BlockKey, list[int]] = defaultdict(list)
    for row, record in enumerate(records):
        is_silent = record.key.method in silent_methods
        implied = _implied(record, is_silent=is_silent)
        has_drafts.append(
            _has_drafts(record, blocks_by_key.get(block_key(record.key), []), is_silent)
        )
        num_emitted.append(implied.num_emitted)
        num_steps.append(float(implied.num_steps))
        has_steps = record.accept_lengths or record.imported  # then no counters are needed
        if record.serving and record.is_ok and not has_steps:
            unlisted_rows[block_key(record.key)].append(row)
    # key of a block -> a sentence about the contradiction in its counters, or None
    sentences = {key: _contradiction(blocks_by_key.get(key, [])) for key in unlisted_rows}
    contradictions = {key: sentence for key, sentence in sentences.items() if sentence}
    for key, rows in unlisted_rows.items():
        # rows of answers that may have ended with a draft token, and so taken a step more
        end_rows = [row for row in rows if _may_have_more(records[row])]
        # drafts that the block's counters show - steps that its answers imply; None if unknown
        num_unseen = _num_unseen(records, rows, num_emitted, num_steps, blocks_by_key.get(key, []))
        # If drafts are unknown or fewer than steps, each of these answers may have one more step.
        if num_unseen is None or num_unseen < 0:
            for row in end_rows:
                num_more[row] = 1
        elif num_unseen > len(end_rows):
            # Each of these answers can hide only one step.
            contradictions.setdefault(key, _TOO_MANY.format(num_unseen, len(end_rows)))
        else:
            for row in end_rows:
                num_steps[row] += num_unseen / len(end_rows)
        if key in contradictions:  # the steps are unknown
            for row in rows:
                num_emitted[row] = 0
                num_steps[row] = 0.0
                num_more[row] = 0
    return ServedSteps(num_emitted, num_steps, num_more, contradictions, has_drafts)


class ImpliedSteps(NamedTuple):
    """The steps that an answer's counts imply; zeros if they imply nothing."""

    num_emitted: int
    """The tokens that steps emitted."""

    num_steps: int


def _implied(record: Record, *, is_silent: bool) -> ImpliedSteps:
    """Find the steps that a record lists, or that its server's counts imply; zeros if unknown.

    `is_silent` is True if the server sends no counts with an answer that has no drafts.
    """
    serving = record.serving  # a server's numbers; None for specbench's own engine
    if record.imported:
        counts = record.imported  # from the imported file; a number that it lacks is None
        return ImpliedSteps(counts.num_emitted or 0, counts.num_steps or 0)
    has_counts = is_silent or _num_accepted(record) is not None or _num_drafts_of(record) == 0
    if record.accept_lengths or serving is None or not (has_counts and record.is_ok):
        # an accept length is the tokens that a listed step emitted; zeros without listed steps
        return ImpliedSteps(sum(record.accept_lengths), len(record.accept_lengths))
    num_emitted = max(record.num_tokens - 1, 0)  # the first token is the prefill's
    num_steps = max(
        num_emitted - (serving.num_accepted or 0),  # a step emits its accepted tokens and one more
        serving.num_drafts or 0,  # a step has at most one draft
        min(num_emitted, 1),  # one step if any token was emitted
    )
    return ImpliedSteps(num_emitted, num_steps)


def _num_unseen(
    records: Sequence[Record],
    rows: Sequence[int],
    emitted: Sequence[int],
    steps: Sequence[float],
    blocks: Sequence[BlockHeader],
) -> float | None:
    """Subtract the steps that answers imply from their block's drafts; None if either is unknown.

    `rows` are the numbers of the block's records; `emitted` and `steps` have a number per record,
    0 if unknown. `blocks` are the parts of the block, with the increase of the server's counters.
    """
    # An answer of a single token has no steps.
    if not all(emitted[row] or records[row].num_tokens < 2 for row in rows):
        return None
    num_drafts = _num_drafts(blocks, len(rows))
    if num_drafts is None:
        return None
    return num_drafts - sum(steps[row] for row in rows)


def _contradiction(blocks: Sequence[BlockHeader]) -> str | None:
    """Write a sentence about the contradiction in the counters of a block; None without one.

    A server cannot accept more tokens than it drafted, or make more drafts than tokens. A block is
    a group of requests that the server completed together, with the increase of its counters.
    `blocks` are its parts: several if the run was continued.
    """
    for block in blocks:
        counters = block.counters
        # A counter that the server lacks gets a default that contradicts nothing.
        num_drafts = counters.get("num_drafts", 0.0)
        num_accepted = counters.get("num_accepted", 0.0)
        num_draft_tokens = counters.get("num_draft_tokens", num_accepted)
        num_tokens = counters.get("num_tokens", num_drafts)
        if num_accepted > num_draft_tokens:
            return f"the server accepted {num_accepted:g} of {num_draft_tokens:g} draft tokens"
        if num_drafts > num_tokens:
            return f"the server made {num_drafts:g} drafts for {num_tokens:g} tokens"
    return None


def _has_drafts(record: Record, blocks: Sequence[BlockHeader], is_silent: bool) -> bool | None:
    """Return whether an answer of a server had drafts, or None if that is unknown.

    The answer's own counts decide. An answer without counts had no drafts if its server is silent
    (`is_silent`: it sends no counts with such answers). Otherwise the counters of the answer's
    `blocks` (groups of requests) decide: True if any of their answers had drafts. None also for an
    answer that failed or does not come from a server.
    """
    num_drafts = _num_drafts_of(record)  # None if the answer has no such count
    if record.serving is None or not record.is_ok:
        return None
    if num_drafts is not None:
        return num_drafts > 0
    if is_silent:
        return _num_accepted(record) is not None
    if not blocks or not all("num_drafts" in block.counters for block in blocks):
        return None
    return any(block.counters["num_drafts"] for block in blocks)


def _num_accepted(record: Record) -> int | None:
    return record.serving.num_accepted if record.serving else None


def _num_drafts_of(record: Record) -> int | None:
    return record.serving.num_drafts if record.serving else None


def _may_have_more(record: Record) -> bool:
    """Check if an accepted end token may have hidden a step that no count of drafts reveals."""
    lacks_draft_count = _num_drafts_of(record) is None
    return record.stop_reason == "eos" and bool(_num_accepted(record)) and lacks_draft_count


def _num_drafts(blocks: Sequence[BlockHeader], num_answers: int) -> float | None:
    """Count the drafts of a server's recorded answers from its counters.

    `blocks` are the groups of requests to which the answers belong, with the increase of the
    server's counters; `num_answers` is the number of answers. None without a counter of drafts, or
    if the counters may include other answers.
    """
    if not blocks or not all("num_drafts" in block.counters for block in blocks):
        return None
    num_finished = sum(block.num_requests - block.num_failed for block in blocks)
    num_tokens = sum(block.num_tokens for block in blocks)  # tokens that the client received
    # The counters cover only these answers if the numbers of requests and of tokens agree. A
    # missing counter of tokens becomes -1, which does not agree.
    num_counted_tokens = sum(block.counters.get("num_tokens", -1) for block in blocks)
    if num_finished != num_answers or num_counted_tokens != num_tokens:
        return None
    return sum(block.counters["num_drafts"] for block in blocks)
