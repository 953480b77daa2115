"""The differences between two runs that are claimed: tests, corrected for their number.

The means over tasks, which sentences are about, are one family of tests; the single tasks, which
are only coloured, are another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.metrics import POOLED
from specbench.analysis.ranking import ALPHA
from specbench.analysis.stats.significance import claims, differs
from specbench.judge.pairs import CellPair


class Claim(NamedTuple):
    """A number of a cell: "speedup", "tokens_per_s" or "mat"."""

    cell: CellKey
    number: str


def find_claims(
    cells: Mapping[CellKey, CellPair], mean: str, *, has_times: bool
) -> frozenset[Claim]:
    """The ratios that differ from 1; without `has_times`, those of MAT alone.

    Vanilla's speedup and MAT are 1 in every run, and no tests.
    """
    families: tuple[dict[Claim, float], dict[Claim, float]] = ({}, {})
    for key, cell in cells.items():
        if key.task == POOLED:
            continue
        counts = () if key.method == BASELINE else ("mat",)
        times = ("tokens_per_s",) if key.method == BASELINE else ("tokens_per_s", "speedup")
        for number in (*counts, *times) if has_times else counts:
            p_value = differs(getattr(cell, number).ratio)
            if p_value is not None:
                families[key.task != mean][Claim(key, number)] = p_value
    return frozenset(claims(families[0], ALPHA) | claims(families[1], ALPHA))
