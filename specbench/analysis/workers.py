"""Agreement of the workers of a run: their times of vanilla's steps, which should be equal.

Speedups are paired within workers, so that a slow card changes none of them; tokens/s mix all.
Knows step times of completions. Does not know what a worker is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.records import BASELINE
from specbench.analysis.stats.bootstrap import FloatArray
from specbench.analysis.stats.significance import holm
from specbench.log.header import RunHeader

if TYPE_CHECKING:
    from pandas import DataFrame

ALPHA = 0.01
"""Chance of naming any worker if all are equal."""
LEAST_SLOWER = 0.03
"""Relative difference of step times from which a worker is named."""
_LEAST_PROMPTS = 8


@dataclass(frozen=True, slots=True)
class SlowWorker:
    """A worker whose steps of vanilla take longer than those of the others: 0.1 is 10 % more."""

    worker: str
    slower: float
    num_prompts: int

    def message(self, info: RunHeader) -> str:
        about = info.workers.get(self.worker)
        name = f"{self.worker} (node {about.node})" if about else self.worker
        reasons = about.gpu.throttled if about and about.gpu else {}
        shares = [f"{reason} in {share * 100:.0f} %" for reason, share in reasons.items() if share]
        throttled = f" Its GPU was throttled: {', '.join(shares)} of samples." if shares else ""
        return (
            f"Vanilla's steps took {self.slower * 100:.0f} % longer on {name} than on the other "
            f"workers ({self.num_prompts} prompts).{throttled} Speedups are paired within workers, "
            "tokens/s mix them: repair its machine, or leave it out."
        )


def find_slow_workers(steps: DataFrame) -> Iterable[SlowWorker]:
    """The workers that are slower than the others.

    `steps` are completions with `method`, `worker`, `cluster` and `ratio`: the time of a step over
    the median of its method, task and turn. A rank-sum test (Mann and Whitney 1947) compares the
    prompts of each worker with those of all others; p-values are corrected for their number.
    """
    baseline = steps[(steps["method"] == BASELINE) & (steps["worker"] != "")]
    logs = np.log(baseline["ratio"]).groupby(
        [baseline["worker"], baseline["cluster"]], observed=True
    )
    prompts = logs.mean()
    names = prompts.index.get_level_values("worker").to_numpy()
    found: list[tuple[SlowWorker, float]] = []
    for name in np.unique(names):
        own, others = (prompts.to_numpy()[mask] for mask in (names == name, names != name))
        if min(len(own), len(others)) < _LEAST_PROMPTS:
            continue
        slower = math.expm1(float(np.median(own) - np.median(others)))
        found.append((SlowWorker(str(name), slower, len(own)), _rank_sum(own, others)))
    corrected = holm([p_value for _, p_value in found])
    for (one, _), p_value in zip(found, corrected, strict=True):
        if p_value < ALPHA and one.slower >= LEAST_SLOWER:
            yield one


def _rank_sum(own: FloatArray, others: FloatArray) -> float:
    """The one-sided p-value of "own values tend to be no larger than the others"."""
    from scipy.special import ndtr

    n, m = len(own), len(others)
    ranks = np.concatenate([own, others]).argsort().argsort()[:n]
    larger = float(ranks.sum()) - n * (n - 1) / 2  # pairs in which the own value is larger
    spread = math.sqrt(n * m * (n + m + 1) / 12)
    return float(ndtr(-(larger - n * m / 2) / spread))
