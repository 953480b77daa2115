"""The measured speedup and MAT of a setting on some samples of a run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.tune_check.settings import record_label
from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate
from specbench.log.run import Run
from specbench.measure.methods import BASELINE
from specbench.types import Record

Times = Mapping[str, Mapping[str, tuple[float, float]]]
"""For each task and sample, the seconds of vanilla and of a setting, summed over turns and passes.
"""


class Speedup(NamedTuple):
    """A measured speedup over tasks."""

    mean: float
    """Mean over tasks."""
    variance: float
    """Variance of its logarithm."""


def sample_of(record: Record) -> str:
    """The name of a record's sample, "task/sample_id"."""
    return f"{record.key.task}/{record.key.sample_id}"


def times_of(run: Run, setting: str) -> Times:
    """The times that vanilla and a setting took on the same samples."""
    wall_s: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for record in run.records:
        if record.is_ok:
            key = record.key
            wall_s[key.method, key.task, sample_of(record)] += record.wall_s or 0
    label = record_label(setting)
    by_task: dict[str, dict[str, tuple[float, float]]] = {}
    for (method, task, sample), setting_s in wall_s.items():
        if method == label:
            pair = (wall_s[BASELINE, task, sample], setting_s)
            by_task.setdefault(task, {})[sample] = pair
    return by_task


def speedup_on(times: Times, samples: Collection[str]) -> Speedup:
    """The speedup on some samples. Its variance does not include the noise of the machine."""
    ratios = []
    variances = []
    for by_sample in times.values():
        pairs = np.array([pair for sample, pair in by_sample.items() if sample in samples])
        if len(pairs):
            # To first order, log(A / B) changes by the sum over samples of a_i / A - b_i / B.
            baseline_s, setting_s = pairs.sum(0)
            terms = pairs[:, 0] / baseline_s - pairs[:, 1] / setting_s
            unbiased = len(pairs) / max(1, len(pairs) - 1)
            ratios.append(baseline_s / setting_s)
            variances.append((terms**2).sum() * unbiased)
    weights = np.array(ratios) / sum(ratios)  # weight of each task in the logarithm of the mean
    return Speedup(float(np.mean(ratios)), float((weights**2 * variances).sum()))


def measured_mat(run: Run, setting: str, samples: Collection[str]) -> float:
    """The MAT of a setting on some samples."""
    label = record_label(setting)
    records = [record for record in run.records if record.is_ok and record.key.method == label]
    lengths = [
        length
        for record in records
        if sample_of(record) in samples
        for length in record.accept_lengths
    ]
    return sum(lengths) / len(lengths)


def step_s(run: Run) -> float:
    """Seconds per step of vanilla."""
    seconds = measure(run).cost(BASELINE, 0.0).step_s
    return seconds.value if isinstance(seconds, Estimate) else math.nan
