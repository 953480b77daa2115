"""Count right and wrong recommendations on simulated runs whose true speedups are known.

    python -m benchmarks.recommendations

The runs are simulated as in `coverage.py`, with one pass or three. Their four methods are equally
fast, or 3, 10 or 30 % apart. The output counts the runs in which a method was recommended, and the
runs in which it was said to be the fastest. Among the latter, it counts the runs in which another
method is truly more than 2 % faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle, islice
from typing import NamedTuple

from benchmarks.coverage import METHODS, NOISES, Design, Simulator
from specbench.analysis.recommended import recommend
from specbench.analysis.stats.estimates import Estimate

BASE = 1.3
"""True speedup of the slowest method."""
STEPS = (0.0, 0.03, 0.1, 0.3)
"""Differences between one method and the next faster one."""
DESIGNS = (Design("1 pass"), Design("3 passes", 1, 3))
NOISE_NAMES = (
    "no other noise",
    "bursts",
    "heavy tails",
    "passes differ by 2 %",
    "passes differ by 5 %",
)
LEAST_WORSE = 0.02
"""A recommendation is wrong if another method is faster by more than this share."""


class Outcome(NamedTuple):
    """Counts of the recommendations of simulated runs with the same truth and design."""

    step: float
    design: str
    num_runs: int
    num_helpful: int
    """Number of runs in which a method was recommended."""
    num_fastest: int
    """Number of runs in which the recommended method was said to be the fastest."""
    num_wrong: int
    """Number of these runs in which another method is in fact more than 2 % faster."""


def simulate(num_runs: int, num_prompts: int = 8, seed: int = 0) -> Iterator[Outcome]:
    """Simulate `num_runs` runs of each truth and design, with each kind of noise in turn."""
    simulator = Simulator(num_prompts, seed)
    for step in STEPS:
        truths = {method: BASE * (1 + step) ** place for place, method in enumerate(METHODS)}
        for design in DESIGNS:
            recommended = [
                recommend(_at(simulator.run(design, NOISES[name]), truths), "vanilla")
                for name in islice(cycle(NOISE_NAMES), num_runs)
            ]
            helpful = [choice for choice in recommended if choice]
            fastest = [choice.method for choice in helpful if not choice.not_slower]
            limit = max(truths.values()) / (1 + LEAST_WORSE)
            num_wrong = sum(truths[method] < limit for method in fastest)
            yield Outcome(step, design.name, num_runs, len(helpful), len(fastest), num_wrong)


def _at(estimates: Mapping[str, Estimate], truths: Mapping[str, float]) -> dict[str, Estimate]:
    """Scale the estimates of equally fast methods to these true speedups."""
    scaled = {}
    for method, truth in truths.items():
        estimate = estimates[method]
        assert estimate.resamples is not None
        scaled[method] = replace(
            estimate,
            value=estimate.value * truth,
            resamples=estimate.resamples * truth,
            units=tuple(logs + math.log(truth) for logs in estimate.units),
            interval=None,  # `rank` computes it
        )
    return scaled


def main() -> None:
    """Print a line per truth and design."""
    print("apart  design    runs  recommended  named fastest   wrong")
    for outcome in simulate(100):
        print(
            f"{outcome.step:5.0%}  {outcome.design:8}  {outcome.num_runs:4}  "
            f"{outcome.num_helpful:11}  {outcome.num_fastest:14}  {outcome.num_wrong:5}"
        )


if __name__ == "__main__":
    main()
