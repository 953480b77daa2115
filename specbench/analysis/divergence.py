"""Whether methods gave vanilla's greedy tokens, and where not, from which token on.

Knows records. Refuses to judge: whether a difference is a near-tie of the numerics or a bug takes
the model, which `audit` loads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specbench.analysis.cells import BASELINE, is_measured
from specbench.analysis.columns import completion
from specbench.types import Record, SampleKey


@dataclass(frozen=True, slots=True)
class Divergence:
    """A completion that is not vanilla's. `position` counts the tokens that they share, which come
    first; the tokens behind them are None where that side had ended.
    """

    key: SampleKey
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
    def share(self) -> float:
        """Of completions that are vanilla's, token by token."""
        return self.num_identical / self.num_compared

    @property
    def first_position(self) -> int | None:
        """The earliest difference."""
        return min((divergence.position for divergence in self.divergences), default=None)


def agreements(records: Iterable[Record], history: str = "shared") -> dict[str, Agreement]:
    """Of every method that has a greedy completion to compare.

    With `history` "own" each method hears its own earlier answers: once they differ from vanilla's,
    the later turns answer another prompt and are not compared.
    """
    greedy: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.key.temperature == 0 and is_measured(record):
            greedy[record.key.method].append(record)
    baseline = {completion(record): record for record in greedy.pop(BASELINE, [])}
    found = {
        method: _agreement(method, sorted(own, key=_turn), baseline, history == "own")
        for method, own in greedy.items()
    }
    return {method: agreement for method, agreement in found.items() if agreement.num_compared}


def _agreement(
    method: str,
    own: Sequence[Record],
    baseline: Mapping[tuple[str, str, int, int], Record],
    is_own_history: bool,
) -> Agreement:
    num_compared = 0
    divergences = []
    parted: set[tuple[str, str, int]] = set()
    for record in own:
        key = record.key
        chat = (key.task, key.sample_id, key.repeat)
        base = baseline.get(completion(record))
        if base is None or chat in parted:
            continue
        num_compared += 1
        if record.token_ids != base.token_ids:
            divergences.append(_divergence(key, base.token_ids, record.token_ids))
            if is_own_history:
                parted.add(chat)
    return Agreement(method, num_compared, tuple(divergences))


def _divergence(key: SampleKey, baseline: Sequence[int], own: Sequence[int]) -> Divergence:
    shared = min(len(baseline), len(own))
    position = next((i for i in range(shared) if baseline[i] != own[i]), shared)
    return Divergence(
        key,
        position,
        baseline[position] if position < len(baseline) else None,
        own[position] if position < len(own) else None,
    )


def _turn(record: Record) -> int:
    return record.key.turn
