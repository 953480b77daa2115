"""Rank the methods of a run by speed, with the tests that support claims about the fastest.

The colour of a speedup depends on a test of the method against vanilla, corrected for the number of
methods. A claim that the fastest method is faster than another is corrected for the number of all
pairs of methods. Only the data show which method is the fastest, so any pair could have been
claimed (Holm 1979). An interval includes the same variance as its test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from specbench.analysis.stats.combining import quotient
from specbench.analysis.stats.estimates import (
    Estimate,
    Missing,
    Value,
    with_machine,
    without_spread,
)
from specbench.analysis.stats.significance import ALPHA, differs, holm
from specbench.analysis.stats.variance import Variance


@dataclass(frozen=True, slots=True)
class Ranking:
    """Methods with a mean speedup, the fastest first, and their tests.

    P-values are None if the machine's variance is unknown: then nothing can be claimed. All
    mappings are by method.
    """

    speedups: Mapping[str, Estimate] = field(default_factory=dict)

    ratios: Mapping[str, Estimate] = field(default_factory=dict)
    """Other method -> the fastest method's speed / the other method's."""

    against_baseline: Mapping[str, float | None] = field(default_factory=dict)
    """The p-value of "as fast as vanilla" of each method, corrected for the number of methods."""

    against_best: Mapping[str, float | None] = field(default_factory=dict)
    """The p-value of "as fast as the fastest" of each other method, corrected for all pairs."""

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.speedups)


def rank(speedups: Mapping[str, Value], baseline: str) -> Ranking:
    """Rank methods by their mean speedups (by method), and test which differences are real.

    The baseline and methods with a missing speedup are left out of the ranking. Every pair of
    methods, baseline included, gets the ratio of its speeds and the p-value of "both are equally
    fast". Intervals and tests include the machine's variance: that of log(ratio) between passes
    over the prompts, or runs. If it is unknown (one pass), intervals leave it out, and p-values are
    None.
    """
    speedup_of = {
        method: speedup
        for method, speedup in speedups.items()
        if method != baseline and isinstance(speedup, Estimate)
    }
    methods = sorted(speedup_of, key=lambda method: speedup_of[method].value, reverse=True)
    if not methods:
        return Ranking()
    # Speeds relative to the baseline, the fastest method first. The baseline is the last, so that
    # it is always the second of a pair.
    speeds = {method: speedup_of[method] for method in methods}
    pooled_machine = pooled_variance([*speeds.values()])  # from all methods; None if unknown
    speeds[baseline] = without_spread(1.0)
    # (first method, second method) -> p-value, and ratio of their speeds
    p_values: dict[tuple[str, str], float | None] = {}
    ratios: dict[tuple[str, str], Estimate] = {}
    for first_method, second_method in combinations(speeds, 2):
        first_speed, second_speed = speeds[first_method], speeds[second_method]
        ratio = first_speed if second_method == baseline else quotient(first_speed, second_speed)
        machine = _larger(ratio.machine, pooled_machine)  # None if the pair's variance is unknown
        ratios[first_method, second_method] = with_machine(ratio, machine)
        p_values[first_method, second_method] = differs(first_speed, second_speed, machine)
    corrected_p_values = holm(p_values)  # corrected for the number of pairs
    best_method, *other_methods = methods
    return Ranking(
        speedups={method: ratios[method, baseline] for method in methods},
        ratios={method: ratios[best_method, method] for method in other_methods},
        against_baseline=holm({method: p_values[method, baseline] for method in methods}),
        against_best={method: corrected_p_values[best_method, method] for method in other_methods},
    )


def pooled_variance(speedups: Sequence[Estimate]) -> Variance | None:
    """Estimate from all methods of a run the variance that units add to a mean log speedup.

    A unit is a pass over the prompts, or a run of a pool (several runs joined).

    Three passes leave two degrees of freedom per method, too few for a claim, so one variance is
    estimated for all methods. In a unit,

        log speed of a method = effect of the method + effect of the unit on all methods + rest

    A log speedup is the difference of two log speeds in a unit, so it contains two rests and no
    effect of the unit. With rests [vanilla and methods, units], the variance of the mean of a log
    speedup over the units is

        2 * sum(rests**2) / degrees / number of units

    None if fewer than two units have numbers of all methods, or if a speedup does not come from a
    single run or pool.
    """
    # `speedup.units` has an array of log speedups [units] per run or pool; none after one pass.
    if not speedups or any(len(speedup.units) != 1 for speedup in speedups):
        return None
    # Log speedups [units] of each method; NaN where a unit has too few requests.
    unit_logs = [speedup.units[0] for speedup in speedups]
    baseline_logs = np.zeros_like(unit_logs[0])  # vanilla's own speedup is 1
    all_logs = np.stack([baseline_logs, *unit_logs])  # [vanilla and methods, all units]
    logs = all_logs[:, np.isfinite(all_logs).all(0)]  # [vanilla and methods, units]
    num_methods, num_units = logs.shape  # vanilla counts as a method
    if num_units < 2:
        return None
    # rest = log speed - mean of the unit - mean of the method + mean of all. Log speedups may
    # replace log speeds: they are lower by vanilla's log speed in the unit, which cancels out with
    # the mean of the unit.
    rests = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
    degrees = (num_methods - 1) * (num_units - 1)
    sum_of_squares = float((rests**2).sum())
    return Variance(2 * sum_of_squares / degrees / num_units, degrees=degrees)


def _larger(machine: Variance | None, pooled: Variance | None) -> Variance | None:
    """Return the larger variance between units, with the degrees of freedom of `pooled`.

    `machine` is the variance of one pair of methods, `pooled` that of all methods. If either is
    None, the result is `machine`.
    """
    if machine is None or pooled is None:
        return machine
    return Variance(max(machine.value, pooled.value), pooled.degrees)


ALONE = "~"
"""The mark of a difference that the interval shows, but the corrected test does not."""


def is_alone(value: Value, p_value: float | None) -> bool:
    """Check if the interval shows a difference from 1, but the corrected test does not."""
    if p_value is None or is_claimed(p_value) or isinstance(value, Missing):
        return False
    return value.interval is not None and 1.0 not in value.interval


def is_claimed(p_value: float | None) -> bool:
    """Check if a corrected p-value supports a claim."""
    return p_value is not None and p_value <= ALPHA
