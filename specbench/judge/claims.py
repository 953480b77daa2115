"""The tests behind the differences between two runs that are claimed, corrected for their number.

The means over tasks, which sentences are about, are one family of tests; the single tasks,
which are only coloured, are another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from specbench.analysis.cells import CellKey
from specbench.analysis.records import BASELINE, POOLED
from specbench.analysis.stats.bootstrap import Estimate
from specbench.analysis.stats.significance import differs, holm
from specbench.judge.pairs import CellPair


class Claim(NamedTuple):
    """A number of a cell: "speedup", "tokens_per_s" or "mat"."""

    cell: CellKey
    number: str


def find_p_values(
    cells: Mapping[CellKey, CellPair], mean: str, *, has_times: bool
) -> dict[Claim, float | None]:
    """The corrected p-values of "the ratio is 1"; without `has_times`, those of MAT alone.

    Vanilla's speedup and MAT are 1 in every run, and are not tested.
    """
    families: tuple[dict[Claim, float | None], dict[Claim, float | None]] = ({}, {})
    for key, cell in cells.items():
        if key.task == POOLED:
            continue
        counts = () if key.method == BASELINE else ("mat",)
        times = ("tokens_per_s",) if key.method == BASELINE else ("tokens_per_s", "speedup")
        for number in (*counts, *times) if has_times else counts:
            pair = cell.pair(number)
            machine = pair.ratio.machine if isinstance(pair.ratio, Estimate) else None
            p_value = differs(pair.subject, pair.reference, machine)
            families[key.task != mean][Claim(key, number)] = p_value
    return {**holm(families[0]), **holm(families[1])}
