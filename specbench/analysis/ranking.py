"""The fastest method of a run, and the tests behind what is claimed about it.

The family of tests is every method against vanilla, and the fastest against each of the others:
whichever method comes out first, the claims hold together (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specbench.analysis.stats.bootstrap import Estimate, Value, quotient
from specbench.analysis.stats.significance import differs, holm

ALPHA = 0.05
"""Chance of any false claim about the methods of a run."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Methods with a mean speedup, the fastest first, and their tests.

    `against_baseline` has the corrected p-value of "as fast as vanilla" of each method, and
    `against_best` of "as fast as the fastest"; None if the machine's variance is unknown, so that
    nothing can be claimed. `ratios` are the fastest method's speed over each of the others.
    """

    speedups: Mapping[str, Estimate] = field(default_factory=dict)
    ratios: Mapping[str, Estimate] = field(default_factory=dict)
    against_baseline: Mapping[str, float | None] = field(default_factory=dict)
    against_best: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.speedups)


def rank(speedups: Mapping[str, Value], baseline: str) -> Ranking:
    """Rank the mean speedups of methods; the baseline and missing values are left out."""
    known = {
        method: value
        for method, value in speedups.items()
        if method != baseline and isinstance(value, Estimate)
    }
    ranked = dict(sorted(known.items(), key=lambda item: item[1].value, reverse=True))
    if not ranked:
        return Ranking()
    best, *others = ranked
    ratios = {method: quotient(ranked[best], ranked[method]) for method in others}
    tests = [(0, method, differs(value)) for method, value in ranked.items()]
    tests += [(1, method, differs(ratio)) for method, ratio in ratios.items()]
    families: tuple[dict[str, float | None], dict[str, float | None]] = ({}, {})
    for (family, method, _), p_value in zip(
        tests, holm_known([p_value for *_, p_value in tests]), strict=True
    ):
        families[family][method] = p_value
    return Ranking(ranked, ratios, *families)


def holm_known(p_values: list[float | None]) -> list[float | None]:
    """The p-values corrected for the number of those that are known."""
    corrected = iter(holm([p_value for p_value in p_values if p_value is not None]))
    return [None if p_value is None else next(corrected) for p_value in p_values]


def is_claimed(p_value: float | None) -> bool:
    """True if a corrected p-value supports a claim."""
    return p_value is not None and p_value <= ALPHA
