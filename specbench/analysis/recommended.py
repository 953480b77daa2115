"""The method to use, by the tests of the ranking."""

from collections.abc import Mapping
from typing import NamedTuple

from specbench.analysis.ranking import is_claimed, rank
from specbench.analysis.stats.estimates import Value


class Recommended(NamedTuple):
    """The fastest method that is shown to help."""

    method: str
    not_slower: tuple[str, ...]
    """Methods that are not shown to be slower; empty if `method` is shown to be the fastest."""


def recommend(speedups: Mapping[str, Value], baseline: str) -> Recommended | None:
    """The method with the highest speedup of those shown to be faster than the baseline; None if
    there is none. `speedups` are means over tasks.
    """
    ranking = rank(speedups, baseline)
    for place, method in enumerate(ranking.methods):
        p_value = ranking.against_baseline[method]
        if ranking.speedups[method].value > 1 and is_claimed(p_value):
            unshown = ranking.methods[:place]  # with higher speedups, which may be chance
            ranked = {method: ranking.speedups[method] for method in ranking.methods[place:]}
            p_values = rank(ranked, baseline).against_best if unshown else ranking.against_best
            close = [other for other, p in p_values.items() if not is_claimed(p)]
            return Recommended(method, (*unshown, *close))
    return None
