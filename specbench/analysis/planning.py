"""Plan how many prompts and passes show a difference, from the variances of a pilot run.

The variance of a log ratio is (variance between prompts / number of prompts) + (variance between
passes or runs / their number). A difference is shown if a two-sided test at 5 % finds it in 80 % of
experiments.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from specbench.analysis.stats.confidence import quantile
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.stats.variance import Variance, total

POWER_SCORE = 0.8416
"""The 80 % quantile of the standard normal distribution."""
DIFFERENCES = (0.02, 0.05, 0.10)
"""The relative differences for which a plan has rows."""
UNITS = (3, 5, 10, 20)
"""The numbers of passes or runs for which a plan has columns."""
_MOST_PROMPTS = 100_000


@dataclass(frozen=True, slots=True)
class Pilot:
    """The variances of a typical log ratio of two speeds, as a pilot run measured them."""

    num_prompts: int

    prompt_variance: float
    """The variance of the log ratio from the choice of `num_prompts` prompts."""

    unit_sd: float | None
    """The standard deviation of the log ratio between passes or runs; None if it is unknown."""

    def smallest(self, num_prompts: float, num_units: int) -> float:
        """Compute the smallest relative difference of speeds that these prompts and units show.

        A difference of 0.05 is 5 %. `num_units` is the number of passes or runs.
        """
        # The variance of a log ratio is inversely proportional to the number of prompts.
        prompt_variance = self.prompt_variance * self.num_prompts / num_prompts
        variances = [Variance(prompt_variance, num_prompts - 1)]
        if self.unit_sd:
            variances.append(Variance(self.unit_sd**2 / num_units, num_units - 1))
        variance = total(variances)
        # log(1 + difference) = (t's 97.5 % quantile + normal's 80 % quantile) * standard deviation
        score = quantile(variance.degrees) + POWER_SCORE
        return math.expm1(score * math.sqrt(variance.value))

    def prompts_for(self, difference: float, num_units: int) -> int | None:
        """Find the fewest prompts that show a relative difference with `num_units` passes or runs.

        None if _MOST_PROMPTS prompts are not enough.
        """
        if self.smallest(_MOST_PROMPTS, num_units) > difference:
            return None
        candidates = range(2, _MOST_PROMPTS + 1)

        def closeness(num_prompts: int) -> float:
            """Negate the smallest shown difference, since bisection needs ascending keys."""
            return -self.smallest(num_prompts, num_units)

        return candidates[bisect_left(candidates, -difference, key=closeness)]


def pilot(ratios: Sequence[Estimate], num_prompts: int, num_units: int) -> Pilot | None:
    """Estimate the variances of a typical ratio of two speeds: the medians over these ratios.

    Each ratio was measured on `num_prompts` prompts in `num_units` passes or runs (units). All
    variances are of logarithms. None if no ratio has a variance, or with fewer than two prompts.
    """
    prompt_variances = []  # variances of log(ratio) from the choice of prompts
    unit_variances = []  # variances of log(ratio) between single units
    for ratio in ratios:
        prompt_variance = ratio.prompts
        if prompt_variance is None:  # too few prompts
            continue
        prompt_variances.append(prompt_variance.value)
        if ratio.machine is not None:  # variance that units add to log(ratio); None if unknown
            # variance of the mean over units = variance of a unit / number of units
            unit_variances.append(ratio.machine.value * num_units)
    if not prompt_variances or num_prompts < 2:
        return None
    unit_sd = math.sqrt(median_high(unit_variances)) if unit_variances else None  # None if unknown
    return Pilot(num_prompts, prompt_variance=median_high(prompt_variances), unit_sd=unit_sd)
