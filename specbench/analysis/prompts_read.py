"""The prompts that servers read, by their own counts of tokens.

A server that takes chats renders them itself, so its prompts may have a few tokens more or
fewer than ours. Requests that two servers read with different differences are different work.
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
    """Tokens of the prompt of one request."""

    num_read: int
    """Tokens as the method's server counted them."""

    num_read_by_vanilla: int
    """Tokens as vanilla's server counted them."""

    num_sent: int
    """Tokens as rendered here."""


@dataclass(frozen=True, slots=True)
class PromptsRead:
    """The prompts that a server read."""

    least_offset: int = 0
    """Tokens that the server counted - tokens rendered here: the smallest of these differences."""

    most_offset: int = 0
    """The largest of these differences."""

    num_uncounted: int = 0
    """Answers without a count of the prompt's tokens, in runs that record whether there was one."""

    num_other: int = 0
    """Answers whose prompt vanilla's server read differently."""

    first_other: OtherPrompt | None = None
    """The first of these answers."""


NO_PROMPTS = PromptsRead()


def prompt_offsets(records: Sequence[Record]) -> FloatArray:
    """Tokens of each prompt: the server's count - the tokens rendered here; NaN if unknown."""
    return np.array([_offset(record) for record in records], dtype=np.float64)


def _offset(record: Record) -> float:
    num_read = tokens_read(record)
    return num_read - record.prompt_tokens if num_read else np.nan


def tokens_read(record: Record) -> int:
    """Tokens of the prompt that a server counted; 0 if it gave no count, or the run keeps none."""
    return (record.serving.reported_prompt_tokens or 0) if record.serving else 0


def other_rows(offsets: FloatArray, baseline_rows: IntArray) -> IntArray:
    """The row of vanilla's record of the request, if its server read another prompt; else -1.

    `baseline_rows` are the rows of vanilla's records, -1 without one: [records].
    """
    difference = np.abs(offsets - offsets[baseline_rows])  # NaN is not above 0
    return np.where((baseline_rows >= 0) & (difference > 0), baseline_rows, -1)


def prompts_read(
    records: Sequence[Record], rows: IntArray, offsets: FloatArray, vanilla_rows: IntArray
) -> PromptsRead:
    """How a method's server read the prompts of its answers, by its counts of prompt tokens.

    Args:
        records: all records of the run.
        rows: numbers of the method's completed records.
        offsets: of each row, tokens that the server counted - tokens rendered here; NaN if unknown.
        vanilla_rows: of each row, the number of vanilla's record of the request if vanilla's server
            read another prompt (its offset differs); else -1.
    """
    known_offsets = offsets[~np.isnan(offsets)]
    is_other = vanilla_rows >= 0  # vanilla's server read another prompt [rows]
    first_other = None
    if is_other.any():
        record = records[rows[is_other][0]]  # the first of these rows
        vanilla_record = records[vanilla_rows[is_other][0]]
        first_other = OtherPrompt(
            num_read=tokens_read(record),
            num_read_by_vanilla=tokens_read(vanilla_record),
            num_sent=record.prompt_tokens,
        )
    servings = [records[row].serving for row in rows]  # a server's figures of each answer
    return PromptsRead(
        least_offset=int(known_offsets.min()) if len(known_offsets) else 0,
        most_offset=int(known_offsets.max()) if len(known_offsets) else 0,
        num_uncounted=sum(  # 0: the server gave no count
            serving is not None and serving.reported_prompt_tokens == 0 for serving in servings
        ),
        num_other=int(is_other.sum()),
        first_other=first_other,
    )
