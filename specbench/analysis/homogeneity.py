"""Whether two samplers draw from one distribution, from counts of what they drew.

Knows integers. The statistic is the G-test's (2 sum O log(O / E), the likelihood ratio of a
contingency table), the p-value from permutations of who drew what, so that it holds for small
counts too, where the chi-square table does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_PERMUTATIONS = 9_999
_RARE = 5
"""Categories seen less often, in both samples together, count as one."""


@dataclass(frozen=True, slots=True, eq=False)
class TwoSamples:
    """What two samplers drew under one condition: [draws, positions] integers each. The draws of a
    row may depend on each other, rows may not.
    """

    first: NDArray[Any]
    second: NDArray[Any]


def p_value(strata: Sequence[TwoSamples], seed: int = 0) -> float:
    """How probable a difference at least as large as the one seen is, if there is none.

    The statistics of all conditions and positions are added up into one test. Rows are permuted as
    a whole and within their condition.
    """
    generator = np.random.default_rng(seed)
    seen, permuted = 0.0, np.zeros(NUM_PERMUTATIONS)
    for stratum in strata:
        rows = np.concatenate([stratum.first, stratum.second])
        labels = np.zeros((NUM_PERMUTATIONS + 1, len(rows)), dtype=np.float32)
        labels[:, : len(stratum.first)] = 1.0
        labels[1:] = generator.permuted(labels[1:], axis=1)
        for column in rows.T:
            statistics = _g(labels @ _one_hot(column), _one_hot(column).sum(0), labels[0].sum())
            seen += statistics[0]
            permuted += statistics[1:]
    # Equal tables must not differ by the rounding of their sums.
    num_as_large = int((permuted >= seen - 1e-6 * max(seen, 1.0)).sum())
    return (1 + num_as_large) / (1 + NUM_PERMUTATIONS)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number (Holm 1979): below alpha, all such claims together
    are wrong with a probability of at most alpha, however the tests depend on each other.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def _one_hot(column: NDArray[Any]) -> NDArray[np.float32]:
    """[rows, categories], the rare ones in one."""
    _, category, counts = np.unique(column, return_inverse=True, return_counts=True)
    is_rare = counts < _RARE
    merged = np.where(is_rare[category], len(counts), category)
    return (merged[:, None] == np.unique(merged)).astype(np.float32)


def _g(
    first: NDArray[np.float32], totals: NDArray[np.float32], num_first: np.float32
) -> NDArray[np.float64]:
    """The G statistic of each table: [tables, categories] counts of the first sampler."""
    share = num_first / totals.sum()
    statistic = np.zeros(len(first))
    for observed, part in ((first, share), (totals - first, 1 - share)):
        expected = totals * part
        ratio = np.where(observed > 0, observed, 1.0) / expected
        statistic += 2 * (observed * np.log(ratio)).sum(1, dtype=np.float64)
    return statistic
