"""Speedups pass by pass (`--repeats`), to find those that change between passes.

Each pass asks the same prompts at another time. A change between passes that is larger than
chance comes from the machine, and no interval over prompts covers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.records import BASELINE
from specbench.analysis.stats.bootstrap import FloatArray
from specbench.analysis.stats.significance import holm

if TYPE_CHECKING:
    from pandas import DataFrame

ALPHA = 0.01
LEAST_SPREAD = 0.03
"""Relative spread of speedups over the passes below which a method counts as steady."""
_LEAST_PROMPTS = 8
_COLUMNS = ["wall_s", "num_tokens", "baseline_wall_s", "baseline_num_tokens"]


@dataclass(frozen=True, slots=True)
class RepeatSpeedups:
    """The speedup of a method in each pass, and the p-value of "they are all the same"."""

    method: str
    temperature: float
    speedups: tuple[float, ...]
    p_value: float


def find_changing_speedups(frame: DataFrame) -> list[RepeatSpeedups]:
    """Methods whose speedup changes from repeat to repeat, in the frame of a `RecordTable`.

    The chance of any wrong entry is at most `ALPHA`, since the p-values are corrected.
    """
    measured = frame[frame["is_measured"] & (frame["method"] != BASELINE)]
    groups = measured.groupby(["method", "temperature"], observed=True, sort=False)
    tested = [
        RepeatSpeedups(method, temperature, *found)
        for (method, temperature), rows in groups
        if rows["repeat"].max() > 0 and (found := _compare_repeats(rows))
    ]
    corrected = holm([one.p_value for one in tested])
    return [
        one
        for one, p_value in zip(tested, corrected, strict=True)
        if p_value < ALPHA and max(one.speedups) > (1 + LEAST_SPREAD) * min(one.speedups)
    ]


def _compare_repeats(rows: DataFrame) -> tuple[tuple[float, ...], float] | None:
    """The speedup in each repeat and the p-value, over prompts finished in all repeats."""
    prompts = rows[rows["baseline_row"] >= 0].pivot_table(
        index=["task", "sample_id", "turn"], columns="repeat", values=_COLUMNS, observed=True
    )
    repeats = range(1 + rows["repeat"].max())
    if not {(_COLUMNS[0], repeat) for repeat in repeats} <= {*prompts.columns}:
        return None
    prompts = prompts.dropna()
    if len(prompts) < _LEAST_PROMPTS:
        return None
    rates = prompts["num_tokens"].sum() / prompts["wall_s"].sum()
    base_rates = prompts["baseline_num_tokens"].sum() / prompts["baseline_wall_s"].sum()
    logs = np.log(prompts["num_tokens"] / prompts["wall_s"])
    base_logs = np.log(prompts["baseline_num_tokens"] / prompts["baseline_wall_s"])
    return tuple((rates / base_rates).tolist()), _p_value((logs - base_logs).to_numpy())


def _p_value(values: FloatArray) -> float:
    """The p-value of "no column of [prompts, repeats] tends to be larger than another".

    Friedman's test in the form of Conover and Iman 1981: an analysis of variance of the ranks of
    the repeats within each prompt, so that outliers weigh no more than other values.
    """
    from scipy.special import fdtrc

    num_prompts, num_repeats = values.shape
    ranks = values.argsort(1).argsort(1) - (num_repeats - 1) / 2
    means = ranks.mean(0)
    between = num_prompts * float((means**2).sum())
    within = float(((ranks - means) ** 2).sum())
    degrees = num_repeats - 1, (num_repeats - 1) * (num_prompts - 1)
    if within == 0.0:
        return 1.0 if between == 0.0 else 0.0
    return float(fdtrc(*degrees, between / degrees[0] / (within / degrees[1])))
