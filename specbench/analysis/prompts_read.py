"""Compare the prompts that servers read, from their own counts of tokens.

A server that takes chats renders them itself, so its prompts may have a few tokens more or fewer
than those rendered here. If this difference is not the same on two servers, a request is not the
same work for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.estimates import Missing
from specbench.types import Record

OTHER_PROMPTS = Missing("its server read different prompts from vanilla's")


class OtherPrompt(NamedTuple):
    """A request's prompt length in tokens, as two servers and specbench count it."""

    num_read: int
    """The tokens, as the method's server counted them."""

    num_read_by_vanilla: int
    """The tokens, as vanilla's server counted them."""

    num_sent: int
    """The tokens, as rendered here."""


@dataclass(frozen=True, slots=True)
class PromptsRead:
    """The prompts that a server read."""

    least_offset: int = 0
    """The smallest difference (tokens that the server counted - tokens rendered here)."""

    most_offset: int = 0
    """The largest of these differences."""

    num_uncounted: int = 0
    """Answers without a count of prompt tokens by the server. 0 in older runs (unknown)."""

    num_other: int = 0
    """Answers to prompts that vanilla's server read differently."""

    first_other: OtherPrompt | None = None
    """The prompt of the first of these answers, or None without answers."""


NO_PROMPTS = PromptsRead()


def prompt_offsets(records: Sequence[Record]) -> FloatArray:
    """Subtract the tokens of each prompt as rendered here from the server's count [records].

    NaN if the server gave no count.
    """
    return np.array([_offset(record) for record in records], dtype=np.float64)


def _offset(record: Record) -> float:
    num_read = tokens_read(record)
    return num_read - record.prompt_tokens if num_read else np.nan


def tokens_read(record: Record) -> int:
    """Return the tokens that a server counted in the prompt; 0 if the record has no count."""
    return (record.serving.reported_prompt_tokens or 0) if record.serving else 0


def other_rows(offsets: FloatArray, baseline_rows: IntArray) -> IntArray:
    """Find the row of vanilla's record if its server read another prompt; else -1 [records].

    `offsets` are the differences of `prompt_offsets` [records]; `baseline_rows` has the row of
    vanilla's record of the same request, or -1 [records].
    """
    difference = np.abs(offsets - offsets[baseline_rows])  # NaN is not above 0
    return np.where((baseline_rows >= 0) & (difference > 0), baseline_rows, -1)


def prompts_read(
    records: Sequence[Record], rows: IntArray, offsets: FloatArray, vanilla_rows: IntArray
) -> PromptsRead:
    """Summarize how a method's server read its prompts, from its counts of prompt tokens.

    Args:
        records: all records of the run.
        rows: numbers of the method's completed records.
        offsets: tokens that the server counted - tokens rendered here [rows]; NaN if unknown.
        vanilla_rows: number of vanilla's record of the request if vanilla's server read another
            prompt (its offset differs), else -1 [rows].
    """
    known_offsets = offsets[~np.isnan(offsets)]
    is_other = vanilla_rows >= 0  # True if vanilla's server read another prompt [rows]
    first_other = None
    if is_other.any():
        record = records[rows[is_other][0]]  # the first of these rows
        vanilla_record = records[vanilla_rows[is_other][0]]
        first_other = OtherPrompt(
            num_read=tokens_read(record),
            num_read_by_vanilla=tokens_read(vanilla_record),
            num_sent=record.prompt_tokens,
        )
    servings = [records[row].serving for row in rows]  # one per answer; None without a server
    return PromptsRead(
        least_offset=int(known_offsets.min()) if len(known_offsets) else 0,
        most_offset=int(known_offsets.max()) if len(known_offsets) else 0,
        num_uncounted=sum(  # 0: the server gave no count
            serving is not None and serving.reported_prompt_tokens == 0 for serving in servings
        ),
        num_other=int(is_other.sum()),
        first_other=first_other,
    )
