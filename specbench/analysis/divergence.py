"""Greedy completions against vanilla's: how many are the same, and where the others diverge.

Records alone cannot tell a near-tie from a bug: that takes the model, which `audit` loads.
"""

from dataclasses import dataclass
from itertools import zip_longest

from specbench.analysis.records import BASELINE, RecordTable
from specbench.types import RecordKey


@dataclass(frozen=True, slots=True)
class Divergence:
    """A completion that differs from vanilla's.

    `position` counts the tokens before the first difference. A token there is None if its side
    had ended.
    """

    key: RecordKey
    position: int
    baseline_token: int | None
    own_token: int | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """A method's greedy completions against vanilla's of the same prompt tokens."""

    method: str
    num_compared: int
    divergences: tuple[Divergence, ...]

    @property
    def num_identical(self) -> int:
        return self.num_compared - len(self.divergences)

    @property
    def first_position(self) -> int | None:
        """The earliest difference."""
        return min((divergence.position for divergence in self.divergences), default=None)


def find_agreements(table: RecordTable, history: str = "shared") -> dict[str, Agreement]:
    """The agreement of every method with a greedy completion to compare.

    With `history` "own" each method sees its own earlier answers. Once they differ from
    vanilla's, later turns answer another prompt and are not compared.
    """
    frame = table.frame
    greedy = frame[
        (frame["temperature"] == 0)
        & frame["is_measured"]
        & (frame["baseline_row"] >= 0)
        & (frame["method"] != BASELINE)
    ]
    agreements = {}
    for method, own in greedy.groupby("method", observed=True, sort=False):
        compared = own.sort_values("turn", kind="stable")
        if history == "own":
            differs = ~compared["is_same"]
            names = ("task", "sample_id", "repeat", "concurrency", "request_rate")
            chats = [compared[name] for name in names]
            num_earlier = differs.groupby(chats, observed=True).cumsum() - differs
            compared = compared[num_earlier == 0]
        different = compared[~compared["is_same"]]
        pairs = zip(different.index, different["baseline_row"], strict=True)
        divergences = tuple(_divergence(table, row, baseline) for row, baseline in pairs)
        agreements[method] = Agreement(method, len(compared), divergences)
    return agreements


def _divergence(table: RecordTable, row: int, baseline_row: int) -> Divergence:
    own, baseline = table.records[row].token_ids, table.records[baseline_row].token_ids
    pairs = enumerate(zip_longest(baseline, own))
    position, (theirs, ours) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
    key = table.records[row].key
    return Divergence(key, position, baseline_token=theirs, own_token=ours)
