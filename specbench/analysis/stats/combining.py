"""Compute means and quotients of estimates, with their intervals."""

from collections.abc import Sequence

import numpy as np

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.estimates import Estimate, with_interval
from specbench.analysis.stats.variance import largest, total_of_known


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """Compute the arithmetic mean of independent estimates of one run, with its interval.

    The estimates are independent if they were resampled on different random streams. The mean has
    no interval if any of them lacks `resamples` [num_resamples], whose degrees of freedom are
    `degrees`. `machine` is the variance that passes or runs (units) add to a number's logarithm. A
    pool is several runs treated as one.
    """
    mean_value = sum(estimate.value for estimate in estimates) / len(estimates)
    # `estimate.units` has an array of logarithms [units] for each run or pool. `zip` groups the
    # arrays of all estimates by run or pool. It gives nothing if an estimate has no such array,
    # because it does not depend on the machine.
    logs_of_groups = zip(*(estimate.units for estimate in estimates), strict=False)
    unit_logs = tuple(_log_of_mean(logs) for logs in logs_of_groups)
    machine = largest([estimate.machine for estimate in estimates])  # None if any is unknown
    resamples = [estimate.resamples for estimate in estimates if estimate.resamples is not None]
    if len(resamples) < len(estimates):
        return Estimate(mean_value, units=unit_logs, machine=machine)
    degrees = _degrees_of_mean(resamples, [estimate.degrees for estimate in estimates])
    mean_estimate = Estimate(
        mean_value,
        resamples=np.mean(resamples, axis=0),
        degrees=degrees,
        units=unit_logs,
        machine=machine,
    )
    return with_interval(mean_estimate)


def _log_of_mean(logs: Sequence[FloatArray]) -> FloatArray:
    """Compute the logarithm of the mean in each unit from the logarithms of the numbers [units]."""
    mean_per_unit = np.mean(np.exp(np.stack(logs)), axis=0)
    log_per_unit: FloatArray = np.log(mean_per_unit)
    return log_per_unit


def _degrees_of_mean(resamples: Sequence[FloatArray], degrees: Sequence[float]) -> float:
    """Compute Welch and Satterthwaite's degrees of freedom for a mean of independent numbers.

    `resamples` has an array [num_resamples] for each number, `degrees` its degrees of freedom.
    """
    variances = np.array([numbers.var() for numbers in resamples])  # [numbers]
    if not variances.any():  # no number varies
        return float(sum(degrees))
    # (sum of variances)^2 / sum of (variance^2 / degrees)
    square_of_sum = variances.sum() ** 2
    return float(square_of_sum / (variances**2 / np.array(degrees)).sum())


def quotient(top: Estimate, bottom: Estimate, *, is_one_run: bool = True) -> Estimate:
    """Estimate `top` / `bottom`, with an interval if both have resamples [num_resamples].

    Resamples are paired by prompts if both numbers were resampled on the same random stream. A unit
    is a pass or a run. `is_one_run` is True for numbers of the same run or pool of runs: their
    units are paired too. Units of two runs are independent. `machine` is the variance that units
    add to a number's logarithm. A pool is several runs treated as one.
    """
    ratio_value = top.value / bottom.value
    # Arrays of logarithms [units]. They are those of the quotient within one run or pool; for two
    # runs, those of both numbers, whose variances add up.
    unit_logs: tuple[FloatArray, ...]
    if is_one_run:
        # not strict, since no pair is left if one number has no units
        pairs_of_logs = zip(top.units, bottom.units, strict=False)
        unit_logs = tuple(top_logs - bottom_logs for top_logs, bottom_logs in pairs_of_logs)
        machine = largest([top.machine, bottom.machine])  # None if either is unknown
    else:
        has_units = bool(top.units and bottom.units)
        unit_logs = (*top.units, *bottom.units) if has_units else ()
        machine = total_of_known([top.machine, bottom.machine])  # None if either is unknown
    if top.resamples is None or bottom.resamples is None:
        return Estimate(ratio_value, units=unit_logs, machine=machine)
    ratio = Estimate(
        ratio_value,
        resamples=top.resamples / bottom.resamples,
        degrees=min(top.degrees, bottom.degrees),
        units=unit_logs,
        machine=machine,
    )
    return with_interval(ratio)
