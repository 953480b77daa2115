"""Numbers of prompts and passes that show a difference, from the variances of a pilot.

The variance of a log ratio is the variance of prompts, divided by their number, plus that of
passes or runs, divided by theirs. A difference is shown if a two-sided test at 5 % finds it in
80 % of experiments.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.analysis.stats.confidence import quantile
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.stats.variance import Variance, total

POWER_SCORE = 0.8416
"""The normal's quantile at 80 %."""
DIFFERENCES = (0.02, 0.05, 0.10)
UNITS = (3, 5, 10, 20)
_MOST_PROMPTS = 100_000


@dataclass(frozen=True, slots=True)
class Pilot:
    """The variances of a typical log ratio of two speeds.

    `prompts` is the variance from one prompt, `unit_sd` the standard deviation between passes
    or runs; None if it is unknown.
    """

    num_prompts: int
    prompt_variance: float
    unit_sd: float | None

    def smallest(self, num_prompts: float, num_units: int) -> float:
        """The smallest relative difference that this many prompts and units show."""
        parts = [Variance(self.prompt_variance * self.num_prompts / num_prompts, num_prompts - 1)]
        if self.unit_sd:
            parts.append(Variance(self.unit_sd**2 / num_units, num_units - 1))
        variance = total(parts)
        return math.expm1((quantile(variance.degrees) + POWER_SCORE) * math.sqrt(variance.value))

    def prompts_for(self, difference: float, num_units: int) -> int | None:
        """The fewest prompts that show the difference with these units; None if none can."""
        if self.smallest(_MOST_PROMPTS, num_units) > difference:
            return None
        numbers = range(2, _MOST_PROMPTS + 1)
        return numbers[
            bisect_left(numbers, -difference, key=lambda n: -self.smallest(n, num_units))
        ]


def pilot(ratios: Sequence[Estimate], num_prompts: int, num_units: int) -> Pilot | None:
    """The pilot of the median variances of these ratios; None if none has both variances."""
    known = [(one.prompts, one.machine) for one in ratios if one.prompts is not None]
    if not known or num_prompts < 2:
        return None
    prompts = sorted(prompts.value for prompts, _ in known if prompts)
    units = sorted(machine.value * num_units for _, machine in known if machine is not None)
    middle = prompts[len(prompts) // 2]
    sd = math.sqrt(units[len(units) // 2]) if units else None
    return Pilot(num_prompts, middle, sd)
