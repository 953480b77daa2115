"""Steps of answers whose server does not list them, computed from its counts.

A step emits the accepted tokens and one more, so the counts of tokens and of accepted tokens
give the steps. After an end token that was itself a draft there is no further token: such an
answer took one step more than the counts give. No count says which answers these are. If every
step has a draft, the drafts of a block are its steps.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.log.backend import BlockHeader
from specbench.log.run import BlockKey, block_key
from specbench.types import Record

_TOO_MANY = (
    "the server counts {:g} drafts more than the steps that its answers imply, of which {} ended "
    "with a draft token"
)


@dataclass(frozen=True, slots=True)
class ServedSteps:
    """Steps of records, and how far they are known.

    `emitted` and `steps` [records] are 0 where they are unknown; steps that a block counts
    beyond the implied ones are spread over the answers that may have them. `more` [records] is
    1 for an answer that may have taken one step more. `contradictions` are in the counts of
    blocks whose answers do not list their steps.
    """

    emitted: Sequence[int]
    steps: Sequence[float]
    more: Sequence[int]
    contradictions: Mapping[BlockKey, str]


def served_steps(records: Sequence[Record], blocks: Sequence[BlockHeader]) -> ServedSteps:
    """The steps of records: those that are listed, or those that their server's counts imply."""
    of_block: dict[BlockKey, list[BlockHeader]] = defaultdict(list)
    for block in blocks:
        of_block[block_key(block)].append(block)
    reporting = {one.key.method for one in records if one.serving and _accepted(one) is not None}
    counted = [_counted(one, is_reporting=one.key.method in reporting) for one in records]
    emitted, steps = [one[0] for one in counted], [float(one[1]) for one in counted]
    more = [0] * len(records)
    rows: dict[BlockKey, list[int]] = defaultdict(list)
    for row, one in enumerate(records):
        if one.serving and one.is_ok and not one.accept_lengths:
            rows[block_key(one.key)].append(row)
    found = {key: text for key in rows if (text := _contradiction(of_block[key]))}
    for key, own in rows.items():
        ends = [row for row in own if _may_have_more(records[row])]
        is_known = all(emitted[row] or records[row].num_tokens < 2 for row in own)
        drafts = _drafts(of_block[key], len(own)) if is_known else None
        unseen = -1.0 if drafts is None else drafts - sum(steps[row] for row in own)
        if unseen > len(ends):
            found.setdefault(key, _TOO_MANY.format(unseen, len(ends)))
        for row in ends:
            steps[row] += max(unseen, 0) / len(ends)
            more[row] = int(unseen < 0)
        for row in own if key in found else ():
            emitted[row], steps[row], more[row] = 0, 0.0, 0
    return ServedSteps(emitted, steps, more, found)


def _contradiction(blocks: Sequence[BlockHeader]) -> str | None:
    """Describe an impossible value among the counters of a block; None if there is none."""
    for counts in (block.counters for block in blocks):
        drafts, accepted = counts.get("num_drafts", 0.0), counts.get("num_accepted", 0.0)
        if accepted > (drafted := counts.get("num_draft_tokens", accepted)):
            return f"the server accepted {accepted:g} of {drafted:g} draft tokens"
        if drafts > (tokens := counts.get("num_tokens", drafts)):
            return f"the server made {drafts:g} drafts for {tokens:g} tokens"
    return None


def _accepted(record: Record) -> int | None:
    return record.serving.num_accepted if record.serving else None


def _counted(record: Record, *, is_reporting: bool) -> tuple[int, int]:
    """Tokens that steps emitted, and steps; none if they are unknown.

    llama.cpp reports no draft of an answer without one.
    """
    serving, accepted = record.serving, _accepted(record)
    if record.accept_lengths or serving is None or not (is_reporting and record.is_ok):
        return sum(record.accept_lengths), len(record.accept_lengths)
    emitted = max(record.num_tokens - 1, 0)
    return emitted, max(emitted - (accepted or 0), serving.num_drafts or 0, min(emitted, 1))


def _may_have_more(record: Record) -> bool:
    """True if an accepted end token may have hidden a step."""
    has_drafts = record.serving is not None and record.serving.num_drafts is not None
    return record.stop_reason == "eos" and bool(_accepted(record)) and not has_drafts


def _drafts(blocks: Sequence[BlockHeader], num_answers: int) -> float | None:
    """The drafts of these answers by the server's counters; None if they may count others too."""
    counters = [block.counters for block in blocks]
    num_tokens = sum(block.num_tokens for block in blocks)
    is_own = sum(block.num_requests - block.num_failed for block in blocks) == num_answers
    is_alone = sum(one.get("num_tokens", -1) for one in counters) == num_tokens
    known = [one["num_drafts"] for one in counters if "num_drafts" in one]
    return sum(known) if is_own and is_alone and len(known) == len(blocks) > 0 else None
