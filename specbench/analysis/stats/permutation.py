"""Permutation test of "two samplers draw from one distribution", from their draws.

Knows integers. The statistic is that of the G-test: 2 sum O log(O / E), the likelihood ratio of a
contingency table. The p-value comes from permuting which sampler drew what, so it holds for small
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
"""Categories seen less often than this in both samples together are merged into one."""


@dataclass(frozen=True, slots=True, eq=False)
class TwoSamples:
    """Draws of two samplers under one condition: integers [draws, positions] each.

    Rows must be independent of each other; the positions of a row need not be.
    """

    first: NDArray[Any]
    second: NDArray[Any]


def permutation_test(strata: Sequence[TwoSamples], seed: int = 0) -> float:
    """The p-value of "the two samplers are the same under every condition".

    The statistics of all conditions and positions are added up into one test. Rows are permuted as
    a whole and within their condition.
    """
    generator = np.random.default_rng(seed)
    observed, permuted = 0.0, np.zeros(NUM_PERMUTATIONS)
    for stratum in strata:
        rows = np.concatenate([stratum.first, stratum.second])
        labels = np.zeros((NUM_PERMUTATIONS + 1, len(rows)), dtype=np.float32)
        labels[:, : len(stratum.first)] = 1.0
        labels[1:] = generator.permuted(labels[1:], axis=1)
        for column in rows.T:
            categories = _one_hot(column)
            counts = labels @ categories
            statistics = _g_statistics(counts, categories.sum(0), labels[0].sum())
            observed += statistics[0]
            permuted += statistics[1:]
    # Equal tables must not differ by the rounding of their sums.
    num_as_large = int((permuted >= observed - 1e-6 * max(observed, 1.0)).sum())
    return (1 + num_as_large) / (1 + NUM_PERMUTATIONS)


def _one_hot(column: NDArray[Any]) -> NDArray[np.float32]:
    """The column as [rows, categories], with rare categories merged."""
    _, category, counts = np.unique(column, return_inverse=True, return_counts=True)
    is_rare = counts < _RARE
    merged = np.where(is_rare[category], len(counts), category)
    return (merged[:, None] == np.unique(merged)).astype(np.float32)


def _g_statistics(
    first: NDArray[np.float32], totals: NDArray[np.float32], num_first: np.float32
) -> NDArray[np.float64]:
    """The G statistic of each table; `first` [tables, categories] counts the first sampler."""
    share = num_first / totals.sum()
    statistic = np.zeros(len(first))
    for observed, part in ((first, share), (totals - first, 1 - share)):
        expected = totals * part
        ratio = np.where(observed > 0, observed, 1.0) / expected
        statistic += 2 * (observed * np.log(ratio)).sum(1, dtype=np.float64)
    return statistic
