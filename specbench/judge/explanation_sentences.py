"""Write explanations in sentences: the explained number or ratio, and its largest factor.

A is the subject and B the reference. The ratio A / B is explained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specbench.analysis.factors import COST, IN_FLIGHT, MAT, Factor
from specbench.judge.explanation import Explanation

_MOST_NAMED = 3
"""Most settings that a sentence names."""
_MOST = 0.5
"""A factor explains most of the ratio if it has more than this share of all changes on a log scale.
"""


def quantity(explanation: Explanation) -> str:
    """The name of the explained number, such as "speedup"."""
    is_throughput = any(factor.name == IN_FLIGHT for factor in explanation.product.factors)
    if explanation.subject.pairs.has_baseline:
        return "throughput ratio to vanilla" if is_throughput else "speedup"
    return "throughput" if is_throughput else "tokens/s"


def number_text(number: float) -> str:
    """A number with three digits, or with all digits before the point if there are more."""
    return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"


def percent_text(factor: Factor) -> str:
    """The distance of a factor's effect from 1, such as "3.2 %"."""
    return f"{100 * abs(factor.effect.value - 1):.1f} %"


def sentence(explanation: Explanation) -> str:
    """The ratio in words, the factor that explains most of it (or that none does), and the possible
    causes of that factor. Without a reference, the sentence has the explained number instead.

    The change by a factor is |log(effect)|, since the logarithms of all factors add up to that of
    the ratio. `explanation.factors` are sorted, with the largest change first.
    """
    product = explanation.product
    if explanation.no_times:
        return f"No speedup is explained: {explanation.no_times}."
    if product.reference is None:
        return _sentence_of_one(explanation)
    numbers = f"{number_text(product.subject)} against {number_text(product.reference)}"
    ratio_text = f"A's {quantity(explanation)} is {product.ratio:.3f} times B's: {numbers}."
    if explanation.num_equal:
        ratio_text += (
            f" All {explanation.num_equal} turns have equal tokens and steps on both sides."
        )
    largest = explanation.factors[0]
    changes = [abs(math.log(factor.effect.value)) for factor in explanation.factors]
    if changes[0] <= _MOST * sum(changes):
        shown = _shown(explanation, explanation.factors) or " No factor is shown to differ from 1."
        return f"{ratio_text} No single factor explains most of the ratio.{shown}"
    # Other factors may cancel more than half of the change by the largest factor.
    is_half_cancelled = abs(math.log(product.ratio)) < changes[0] / 2
    opening = "The largest factor is" if is_half_cancelled else "Most of the ratio comes from"
    largest_text = f"{opening} {largest.name}, x{largest.effect.value:.3f}"
    return f"{ratio_text} {largest_text}{_evidence(explanation)}"


def _evidence(explanation: Explanation) -> str:
    """The end of the sentence on the largest factor, and the sentences that follow it.

    The end says if the factor is shown to differ from 1. A factor is claimed if it differs
    significantly from 1. Then sentences follow on the settings that can change it and on other
    claimed factors. If it was tested but is not claimed, only the other factors are named. If it
    was not tested, only the settings are named. If a claimed factor has no cause, the end says so,
    and no sentence follows.
    """
    largest, *others = explanation.factors
    causes = explanation.causes(largest.name)
    named = [*causes[:_MOST_NAMED]]
    if len(causes) > _MOST_NAMED:
        named.append(f"and {len(causes) - _MOST_NAMED} more")
    differing = f" Settings that differ and can change it: {'; '.join(named)}." if causes else ""
    if explanation.is_imported and not causes:
        differing = " The files show no setting that differs and can change it."
    if explanation.is_without_cause(largest.name):
        return f", a change of {percent_text(largest)} without a cause."
    if explanation.is_claimed(largest.name):
        differing = differing or " This factor follows from the others."
        return f".{differing}{_shown(explanation, others)}"
    if explanation.p_values.get(largest.name) is not None:  # tested, but not claimed
        return f", which is not shown to differ from 1.{_shown(explanation, others)}"
    reason = "its interval covers prompts only" if largest.effect.interval else "it has no interval"
    return f". Nothing is claimed about this factor, because {reason}.{differing}"


def _shown(explanation: Explanation, factors: Sequence[Factor]) -> str:
    """A further sentence that lists the factors that differ significantly from 1. It is empty
    without such factors.
    """
    claimed = [factor for factor in factors if explanation.is_claimed(factor.name)]
    texts = [f"{factor.name} x{factor.effect.value:.3f}" for factor in claimed]
    return f" Shown to differ from 1: {', '.join(texts)}." if texts else ""


def _sentence_of_one(explanation: Explanation) -> str:
    """A sentence on the explained number of a single run, with MAT and the cost of a step.

    An example is "MAT 6.23, yet speedup 0.61: a step takes 10.21 times as long as vanilla's."
    """
    product = explanation.product
    number_and_name = f"{quantity(explanation)} {number_text(product.subject)}"
    # name of a factor -> the run's number
    numbers = {factor.name: factor.subject for factor in product.factors}
    if MAT not in numbers:
        return f"{number_and_name}; steps are unknown."
    link = "yet" if product.subject < numbers[MAT] else "and"
    beginning = f"MAT {numbers[MAT]:.2f}, {link} {number_and_name}"
    cost = numbers[COST]  # in steps of vanilla, or in seconds without vanilla
    if explanation.subject.pairs.has_baseline:
        return f"{beginning}: a step takes {cost:.2f} times as long as vanilla's."
    return f"{beginning}: a step takes {number_text(1e3 * cost)} ms."
