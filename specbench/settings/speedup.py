"""Estimate the speedup of a setting from its steps and a cost curve, with an interval.

The speedup of a task is vanilla's seconds / the method's, each summed over the prompts of the task,
prefill included. The result is the mean over tasks, as in reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.confidence import quantile
from specbench.analysis.stats.variance import Variance, total
from specbench.settings.cost_model import CostModel
from specbench.settings.step_times import FASTER
from specbench.settings.walk import Walk

if TYPE_CHECKING:
    from pandas import DataFrame

NUM_RESAMPLES = 500
"""The number of resamples of prompts, and of the blocks of a curve."""


class SpeedupEstimate(NamedTuple):
    """The speedup of a setting over all tasks, estimated with a cost curve."""

    speedup: float
    """The mean over tasks."""
    half_width: float
    """Half the width of the 95 % interval of log(speedup)."""
    thread_index: int
    """The number of threads that a run would choose, as an index in the curve's numbers of threads.
    """
    vanilla_steps: float
    """The time of all answers with the setting, in steps of vanilla."""


def weigh(
    walks: Sequence[Walk], model: CostModel, label: str, options: Mapping[str, Any]
) -> DataFrame:
    """Count how often vanilla ("baseline") and a setting ("own") pay each cost of a curve.

    A row is a sample, "task/sample_id". It has the sum over the turns, which depend on each other.
    """
    import pandas as pd

    samples = [walk.prompt.rpartition("/")[0] for walk in walks]
    weights = {
        "baseline": [model.weights(None, {}, walk.vanilla) for walk in walks],
        "own": [model.weights(label, options, walk) for walk in walks],
    }
    sides = {side: pd.DataFrame(np.stack(rows), samples) for side, rows in weights.items()}
    return pd.concat(sides, axis=1).groupby(level=0, sort=False).sum()


def estimate(weighed: DataFrame, model: CostModel, label: str) -> SpeedupEstimate:
    """Estimate the mean speedup over tasks, with the number of threads that a run would choose.

    Args:
        weighed: how often vanilla ("baseline") and the setting ("own") pay each cost of the
            curve, a row per sample, as `weigh` returns it.
        model: the model of this curve, with `NUM_RESAMPLES`.
        label: the method as the curve spells it.
    """
    setting_weights = weighed["own"].to_numpy().sum(0)  # summed over all samples [columns]
    thread_indices = range(len(model.curve.threads))
    # time of all answers by number of threads, in steps of vanilla
    times = [float(setting_weights @ model.costs(label, index)[0]) for index in thread_indices]
    # A run keeps vanilla's number of threads (the first) unless another is FASTER times as fast.
    compared_times = [times[0], *(FASTER * time for time in times[1:])]
    thread_index = compared_times.index(min(compared_times))
    # a list with an array per task [1 + resamples]
    speedups = _speedups_by_task(weighed, model, model.costs(label, thread_index))
    mean_speedups = np.mean(speedups, axis=0)  # [1 + resamples]: the estimate, then resamples
    num_samples = len(weighed)
    degrees = max(1, num_samples - len(speedups))  # degrees of freedom: samples - tasks
    # Resamples of n samples give the variance with the divisor n instead of the degrees of freedom.
    drawn_variance = float(np.log(mean_speedups[1:]).var()) * (num_samples / degrees)
    prompts_variance = Variance(drawn_variance, degrees)
    # The variance of log(time of a step) when one setting is measured again. Each setting that was
    # measured twice adds one degree of freedom.
    process_variance = Variance(model.curve.process, max(1, model.curve.num_pairs))
    log_variance = total([prompts_variance, process_variance])
    # Student's t at 97.5 % * standard deviation of the logarithm
    half_width = quantile(log_variance.degrees) * math.sqrt(log_variance.value)
    return SpeedupEstimate(
        speedup=float(mean_speedups[0]),
        half_width=half_width,
        thread_index=thread_index,
        vanilla_steps=times[thread_index],
    )


@cache
def _draws(task: str) -> Draws:
    return Draws(Bootstrap(NUM_RESAMPLES), f"tune/{task}")


def _speedups_by_task(
    weighed: DataFrame, model: CostModel, setting_costs: FloatArray
) -> list[FloatArray]:
    """Compute the speedup of each task: the estimate, then its resamples [1 + resamples].

    Each resample draws prompts and blocks of the curve. Both sides of a ratio have the same draws.

    Args:
        weighed: how often vanilla ("baseline") and a setting ("own") pay each cost, a row per
            sample, "task/sample_id".
        model: has the costs of vanilla.
        setting_costs: each cost of the setting and its resamples [1 + resamples, columns].
    """
    # the costs of vanilla with its own number of threads, and those of the setting
    costs_by_side = {"baseline": model.costs(None, 0), "own": setting_costs}
    speedups = []
    # `samples` are the rows of one task.
    for task, samples in weighed.groupby(lambda sample: sample.partition("/")[0], sort=False):
        times = {}  # by side: the time of the task's answers, in steps of vanilla [1 + resamples]
        for side, costs in costs_by_side.items():  # costs [1 + resamples, columns]
            weights = samples[side].to_numpy()  # [samples, columns]
            # sums over samples drawn with replacement, the same ones for both sides
            resampled = _draws(str(task)).sums(weights)  # [resamples, columns]
            weight_sums = np.vstack([weights.sum(0), resampled])  # [1 + resamples, columns]
            times[side] = (weight_sums * costs).sum(1)
        speedups.append(times["baseline"] / times["own"])
    return speedups
