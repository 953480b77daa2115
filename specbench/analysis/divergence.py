"""Compare greedy completions with vanilla's: count equal ones, and find the first differences.

Records alone cannot tell a near-tie from a bug: that takes the model, which `audit` loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from specbench.analysis.records import BASELINE, RecordTable
from specbench.types import Record, RecordKey

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_CHAT = ("task", "sample_id", "repeat", "concurrency", "request_rate")
"""The columns that identify a chat of a method at a temperature."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A completion that differs from vanilla's.

    `position` is the number of equal tokens before the first difference. The token at this position
    is None for a completion that has already ended.
    """

    key: RecordKey
    position: int
    baseline_token: int | None
    own_token: int | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """The comparison of a method's greedy completions with vanilla's for the same prompt tokens."""

    method: str
    num_compared: int
    divergences: tuple[Divergence, ...]

    @property
    def num_identical(self) -> int:
        return self.num_compared - len(self.divergences)

    @property
    def first_position(self) -> int | None:
        """The smallest position of a first difference; None if all completions are equal."""
        return min((divergence.position for divergence in self.divergences), default=None)


def find_agreements(table: RecordTable, history: str = "shared") -> dict[str, Agreement]:
    """Count the greedy completions of each method that equal vanilla's, and locate differences.

    The keys of the result are methods; a method without a completion to compare is left out. The
    result is empty for a run with imported answers, since few imported files have token ids.

    Args:
        table: the records of a run.
        history: which earlier answers the prompt of a later turn of a chat contains: "shared" means
            vanilla's for all methods, "own" the method's own. With "own", the turns after an answer
            that differs from vanilla's have another prompt, and are not compared.
    """
    if any(record.imported for record in table.records):
        return {}
    # `baseline_row`: the row of vanilla's answer to the request on the same worker; -1 if there is
    # none, or if vanilla's server read another prompt. `is_measured`: the answer did not fail.
    frame = table.frame
    greedy_rows = frame[
        (frame["temperature"] == 0)
        & frame["is_measured"]
        & (frame["baseline_row"] >= 0)
        & (frame["method"] != BASELINE)
    ]
    agreements = {}
    for method, method_rows in greedy_rows.groupby("method", observed=True, sort=False):
        compared_rows = method_rows.sort_values("turn", kind="stable")
        if history == "own":  # only turns whose prompt is vanilla's
            compared_rows = compared_rows[num_earlier_differences(compared_rows) == 0]
        # `is_same`: the answer has the token ids of vanilla's
        different_rows = compared_rows[~compared_rows["is_same"]]
        # pairs of record numbers: the method's record, and vanilla's of the same request
        row_pairs = zip(different_rows.index, different_rows["baseline_row"], strict=True)
        divergences = tuple(
            first_divergence(table.records[row], table.records[baseline_row].token_ids)
            for row, baseline_row in row_pairs
        )
        agreements[method] = Agreement(
            method, num_compared=len(compared_rows), divergences=divergences
        )
    return agreements


def num_earlier_differences(completions: DataFrame) -> Series:
    """Count the earlier turns of the same chat whose answers differ from vanilla's [completions].

    `completions` are those of one method at temperature 0, with turns in order.
    """
    differs = ~completions["is_same"]
    chats = [completions[name] for name in _CHAT]
    return differs.groupby(chats, observed=True).cumsum() - differs


def first_divergence(record: Record, baseline_ids: Sequence[int]) -> Divergence:
    """Find the first difference between a completion and vanilla's tokens. There must be one."""
    position = _first_difference(record.token_ids, baseline_ids)
    return Divergence(
        record.key,
        position,
        baseline_token=_token_at(baseline_ids, position),
        own_token=_token_at(record.token_ids, position),
    )


def _first_difference(own_ids: Sequence[int], baseline_ids: Sequence[int]) -> int:
    """Find the first position at which the token ids differ or only one list has ended."""
    token_pairs = zip_longest(own_ids, baseline_ids)
    differs = (token != baseline_token for token, baseline_token in token_pairs)
    return next(position for position, is_different in enumerate(differs) if is_different)


def _token_at(token_ids: Sequence[int], position: int) -> int | None:
    return token_ids[position] if position < len(token_ids) else None
