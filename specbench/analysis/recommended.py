"""Recommend the method to use, based on the tests of the ranking."""

from collections.abc import Mapping
from typing import NamedTuple

from specbench.analysis.ranking import is_claimed, rank
from specbench.analysis.stats.estimates import Value


class Recommended(NamedTuple):
    """The fastest method that is shown to be faster than the baseline."""

    method: str
    not_slower: tuple[str, ...]
    """Other methods that are not shown to be slower; empty if `method` is shown to be fastest."""


def recommend(speedups: Mapping[str, Value], baseline: str) -> Recommended | None:
    """Recommend the fastest of the methods whose speedup over the baseline is significant.

    None if there is no such method. `speedups` are means over tasks, by method. The result also
    names the methods that are not significantly slower than the recommended one.
    """
    ranking = rank(speedups, baseline)  # the fastest method first
    for index, method in enumerate(ranking.methods):
        is_significant = is_claimed(ranking.against_baseline[method])  # a corrected p-value
        if ranking.speedups[method].value > 1 and is_significant:
            # methods with a higher speedup, which is not significant
            faster = ranking.methods[:index]
            # `method` and all slower methods
            ranked = {slower: ranking.speedups[slower] for slower in ranking.methods[index:]}
            # for each slower method: the p-value of "as fast as `method`"
            p_values = rank(ranked, baseline).against_best if faster else ranking.against_best
            close = [slower for slower, p_value in p_values.items() if not is_claimed(p_value)]
            return Recommended(method, (*faster, *close))
    return None
