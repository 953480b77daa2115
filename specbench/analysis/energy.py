"""Compute a method's energy per token, from a counter that advances in ticks."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specbench.analysis.ratios import cluster_sums
from specbench.analysis.records import RecordTable
from specbench.analysis.stats.arrays import IntArray
from specbench.analysis.stats.bootstrap import Draws, Ratio
from specbench.analysis.stats.estimates import Estimate, Interval, Missing, Value
from specbench.log.usage import MethodEnergy

NOT_METERED = Missing("not measured")
TOO_COARSE = Missing("the counter is too coarse")

TICK_S = 0.1
"""The seconds between two ticks of a GPU's energy counter, and between two samples of its power."""
MOST_HALF_WIDTH = 0.25
"""The largest allowed half width of an interval / its value. Wider ones make the value missing."""


def joules_per_token_alone(energies: Sequence[MethodEnergy]) -> Value:
    """Compute joules per token of a method that repeated its prompts while no other method ran.

    `energies` has the method's energy in each run of a pool. Missing if any run did not measure it.
    """
    if reasons := [energy.absent for energy in energies if energy.joules_per_token is None]:
        return Missing(reasons[0] or NOT_METERED.reason)
    joules = sum((energy.joules_per_token or 0.0) * energy.num_tokens for energy in energies)
    num_tokens = sum(energy.num_tokens for energy in energies)
    return Estimate(joules / num_tokens) if num_tokens else NOT_METERED


def joules_per_token(table: RecordTable, rows: IntArray, draws: Draws) -> Value:
    """Compute the whole card's joules per token: the method's sum of joules / its sum of tokens.

    The interval is over prompts, and wider by the error of the energy counter. The counter advances
    in ticks, so the energy of an answer may be wrong by one tick, and the energy of n answers by

        sqrt(n) * TICK_S * mean power

    Missing if no answer was metered, if no tick came during an answer, or if half the interval is
    more than MOST_HALF_WIDTH of the ratio. With too few samples for an interval, the error of the
    ticks replaces half the interval.

    Args:
        table: the records of the run.
        rows: numbers of the records of the method.
        draws: resamples the samples (clusters), for the interval.
    """
    # For each row: joules (NaN if not metered), tokens, seconds and the number of its sample.
    joules, num_tokens, wall_s, clusters = table.values(
        rows, "energy_j", "num_tokens", "wall_s", "cluster"
    )
    is_metered = ~np.isnan(joules)
    if not is_metered.any():
        return NOT_METERED
    columns = [joules[is_metered], num_tokens[is_metered]]
    sums = cluster_sums(clusters[is_metered], columns)  # joules and tokens [clusters, 2]
    # over all clusters
    total_j, total_tokens = sums.sum(0)
    if not total_j:  # no tick of the counter came during an answer
        return TOO_COARSE
    estimate = draws.estimate(Ratio(top=sums[:, :1], bottom=sums[:, 1:]))
    tick_j = TICK_S * total_j / wall_s[is_metered].sum()  # mean joules per tick
    # joules per token by which the ratio may be wrong because of the ticks
    tick_error = math.sqrt(is_metered.sum()) * tick_j / total_tokens
    interval = estimate.interval  # from resampled prompts; None with too few samples
    half_width = tick_error + (interval.half_width if interval else 0.0)
    if half_width > MOST_HALF_WIDTH * estimate.value:
        return TOO_COARSE
    if interval is None:
        # With too few samples, reports would show `wide_interval`, which lacks the ticks' error.
        return replace(estimate, wide_interval=None)
    wider = Interval(max(0.0, interval.low - tick_error), interval.high + tick_error)
    return replace(estimate, interval=wider, resamples=None)  # resamples lack the ticks' error
