"""The coverage of intervals, and the false claims, on simulated runs of equally fast methods.

    python benchmarks/coverage.py [--short]

Every run has six tasks and four methods whose true speedup is 1. A prompt changes a method's speed
by 15 %. Each completion has 3 % noise in addition to the noise that a row names. Speedups are
estimated as in reports. They are ratios of sums, with a bootstrap over prompts, and with passes or
runs as random effects. The ranking has corrected tests, which use the variances of the intervals.

The output has three shares. The first is the share of intervals of the mean speedup that cover 1.
The others are the share of runs in which a colour claims that some method differs from vanilla, and
the share in which the sentence claims that the fastest method differs from another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np

from specbench.analysis.ranking import is_claimed, rank
from specbench.analysis.ratios import RowGroups, log_ratios
from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.combining import mean
from specbench.analysis.stats.estimates import Estimate

METHODS = ("a", "b", "c", "d")
NUM_TASKS = 6
PROMPT_SD, NOISE = 0.15, 0.03
UNTIL = 0.02
"""`sequential` ends a run when the half width of each interval is below this share of its speedup.
"""
_MOST_PASSES = 20
NUM_RUNS = 300

Generator: TypeAlias = np.random.Generator
Noise: TypeAlias = Callable[[Generator, tuple[int, int, int, int]], FloatArray]
"""Draws logarithms of factors of the times, in the given shape [runs, passes, prompts, methods]."""


@dataclass(frozen=True)
class Design:
    """The simulated runs and passes. A unit is a run, or a pass if there is a single run."""

    name: str
    num_runs: int = 1
    num_passes: int = 1

    @property
    def num_units(self) -> int:
        return self.num_runs if self.num_runs > 1 else self.num_passes


DESIGNS = (
    Design("1 pass"),
    Design("3 passes", 1, 3),
    Design("5 passes", 1, 5),
    Design("5 runs", 5),
)


def load(generator: Generator, shape: tuple[int, int, int, int]) -> FloatArray:
    """Load that comes and goes, as a first-order autoregression over completions with sd 10 %."""
    size = int(np.prod(shape))
    from scipy.signal import lfilter

    rho, sd = 0.95, 0.1
    driven = generator.normal(0, sd * np.sqrt(1 - rho**2), size)
    driven[0] *= 1 / np.sqrt(1 - rho**2)
    logs: FloatArray = lfilter([1.0], [1.0, -rho], driven)
    return logs.reshape(shape)


def bursts(generator: Generator, shape: tuple[int, int, int, int]) -> FloatArray:
    """5 % of the completions take 3 times as long."""
    return np.where(generator.random(shape) < 0.05, np.log(3.0), 0.0)


def heavy_tails(generator: Generator, shape: tuple[int, int, int, int]) -> FloatArray:
    """Noise of 5 % with the tails of Student's t with three degrees of freedom."""
    return 0.05 * generator.standard_t(3, shape)


def by_pass(sd: float | FloatArray) -> Noise:
    """Noise that each method has in each pass. `sd` may be one per method, vanilla's first."""
    return lambda generator, shape: generator.normal(0, sd, (*shape[:2], 1, shape[3]))


def by_run(sd: float) -> Noise:
    """Noise of each method in each run, the same in all passes of the run."""
    return lambda generator, shape: generator.normal(0, sd, (shape[0], 1, 1, shape[3]))


NOISES: Mapping[str, Noise] = {
    "no other noise": lambda generator, shape: np.zeros(shape),
    "load that comes and goes": load,
    "bursts": bursts,
    "heavy tails": heavy_tails,
    "passes differ by 2 %": by_pass(0.02),
    "passes differ by 5 %": by_pass(0.05),
    "runs differ by 3 %": by_run(0.03),
    "runs differ by 5 %": by_run(0.05),
}


class Simulator:
    """Simulates runs. All use the same draws of the bootstrap, since their data are independent."""

    def __init__(
        self, num_prompts: int, seed: int = 0, num_resamples: int = 400, gain: float = 0.0
    ) -> None:
        self._num_prompts, self._gain = num_prompts, gain
        self._generator = np.random.default_rng(seed)
        bootstrap = Bootstrap(num_resamples)
        self._draws = [Draws(bootstrap, str(task)) for task in range(NUM_TASKS)]

    def run(self, design: Design, noise: Noise) -> dict[str, Estimate]:
        """The mean speedup of each method."""
        tasks = self._tasks(design, noise)
        return self._estimate(tasks, design.num_units, design.num_runs * design.num_passes)

    def until(self, width: float, noise: Noise, least: int = 3) -> dict[str, Estimate]:
        """The mean speedups after the first pass at which all intervals are narrow enough."""
        tasks = self._tasks(Design("", 1, _MOST_PASSES), noise)
        for num_passes in range(least, _MOST_PASSES + 1):
            estimates = self._estimate(tasks, num_passes, num_passes)
            if all(
                speedup.interval and speedup.interval.half_width <= width * speedup.value
                for speedup in rank(estimates, "vanilla").speedups.values()
            ):
                break
        return estimates

    def _tasks(self, design: Design, noise: Noise) -> list[tuple[FloatArray, FloatArray]]:
        """Draw each task's tokens [prompts] and seconds [passes of all runs, prompts, methods]."""
        generator, n = self._generator, self._num_prompts
        shape = design.num_runs, design.num_passes, NUM_TASKS * n, 1 + len(METHODS)
        logs = noise(generator, shape) + generator.normal(0, NOISE, shape)
        logs = logs.reshape(-1, NUM_TASKS, n, shape[3])
        gains = generator.normal(PROMPT_SD**2 / 2, PROMPT_SD, (NUM_TASKS, n, len(METHODS)))
        tokens = generator.lognormal(4.5, 0.5, (NUM_TASKS, n)).clip(8, 512)
        logs[..., 1:] -= gains
        logs[..., 1] -= np.log1p(self._gain)
        return [
            (tokens[i], tokens[i][None, :, None] * np.exp(logs[:, i])) for i in range(NUM_TASKS)
        ]

    def _estimate(
        self, tasks: list[tuple[FloatArray, FloatArray]], num_units: int, num_passes: int
    ) -> dict[str, Estimate]:
        cells: dict[str, list[Estimate]] = {method: [] for method in METHODS}
        for draws, (tokens, seconds) in zip(self._draws, tasks, strict=True):
            for method, ratio in self._ratios(tokens, seconds[:num_passes], num_units).items():
                cells[method].append(draws.estimate(ratio))
        return {method: mean(estimates) for method, estimates in cells.items()}

    def _ratios(self, tokens: FloatArray, seconds: FloatArray, num_units: int) -> dict[str, Ratio]:
        num_passes, num_prompts, _ = seconds.shape
        units = np.repeat(np.arange(num_units), num_passes // num_units * num_prompts)
        requests = np.tile(np.arange(num_prompts), num_passes)
        counted = np.tile(tokens, num_passes)
        ratios = {}
        for i, method in enumerate(METHODS, start=1):
            base_s, method_s = seconds[:, :, 0], seconds[:, :, i]
            top, bottom = [base_s.ravel(), counted], [counted, method_s.ravel()]
            ratios[method] = Ratio(
                np.stack([base_s.sum(0), num_passes * tokens], 1),
                np.stack([num_passes * tokens, method_s.sum(0)], 1),
                units=log_ratios(RowGroups(requests, units, requests, num_units), top, bottom),
                machine=None,
            )
        return ratios


@dataclass(frozen=True)
class Shares:
    """The share of intervals that cover the truth, and the shares of runs with a false claim."""

    covered: float
    coloured: float
    """Share of runs with a false colour."""
    said: float
    """Share of runs with a false sentence."""

    @property
    def text(self) -> str:
        return " / ".join(
            f"{share * 100:.0f}" for share in (self.covered, self.coloured, self.said)
        )


def measure(
    run: Callable[[], Mapping[str, Estimate]],
    num_runs: int,
    methods: Collection[str] = METHODS,
) -> Shares:
    """The shares among `num_runs` runs. `covered` counts the intervals of `methods`."""
    covered = given = coloured = said = 0
    for estimates in (run() for _ in range(num_runs)):
        ranking = rank(estimates, "vanilla")
        intervals = [
            speedup.interval
            for method, speedup in ranking.speedups.items()
            if method in methods and speedup.interval
        ]
        given += len(intervals)
        covered += sum(1.0 in interval for interval in intervals)
        coloured += any(map(is_claimed, ranking.against_baseline.values()))
        said += any(map(is_claimed, ranking.against_best.values()))
    return Shares(covered / max(given, 1), coloured / num_runs, said / num_runs)


def table(num_runs: int = NUM_RUNS, sizes: tuple[int, ...] = (6, 80)) -> Iterator[str]:
    """The lines of the result, in Markdown."""
    names = " | ".join(design.name for design in DESIGNS)
    yield f"| noise | prompts per task | {names} |"
    yield "|---|---:|" + "---:|" * len(DESIGNS)
    for name, noise in NOISES.items():
        for size in sizes:
            cells = [
                measure(partial(Simulator(size, seed=seed).run, design, noise), num_runs).text
                for seed, design in enumerate(DESIGNS)
            ]
            yield f"| {name} | {size} | {' | '.join(cells)} |"


def sequential(num_runs: int = NUM_RUNS, size: int = 24) -> Iterator[str]:
    """Coverage and false claims if a run ends as soon as all intervals are narrow enough."""
    for name in ("no other noise", "passes differ by 2 %"):
        shares = measure(partial(Simulator(size).until, UNTIL, NOISES[name]), num_runs)
        yield f"| until ±{UNTIL * 100:g} %, {name} | {size} | {shares.text} |"


def two_passes(num_runs: int = NUM_RUNS) -> Iterator[str]:
    """Coverage and false claims after two passes, the default of real models."""
    for name in ("no other noise", "bursts", "passes differ by 2 %", "passes differ by 5 %"):
        for size in (6, 80):
            run = partial(Simulator(size).run, Design("2 passes", 1, 2), NOISES[name])
            yield f"| 2 passes, {name} | {size} | {measure(run, num_runs).text} |"


def one_noisy_method(num_runs: int = NUM_RUNS) -> Iterator[str]:
    """Coverage of a method whose passes differ by 8 %, not 2 % as the others', and all claims."""
    noise = by_pass(np.array([0.02, 0.08, 0.02, 0.02, 0.02]))  # vanilla and METHODS
    for design, size in product(DESIGNS[1:3], (6, 80)):
        shares = measure(partial(Simulator(size).run, design, noise), num_runs, METHODS[:1])
        yield f"| {design.name}, one method differs by 8 % | {size} | {shares.text} |"


def power(num_runs: int = NUM_RUNS, size: int = 80) -> Iterator[str]:
    """A table with the percentage of runs that tell a truly faster method from vanilla."""
    yield "| passes and runs differ by 2 %, one method is faster by | 1 pass | 3 passes | 5 runs |"
    yield "|---|---:|---:|---:|"
    noise = NOISES["passes differ by 2 %"]
    for gain in (0.02, 0.05, 0.10):
        shares = []
        for design in (DESIGNS[0], DESIGNS[1], DESIGNS[3]):
            simulator = Simulator(size, gain=gain)
            rankings = (rank(simulator.run(design, noise), "vanilla") for _ in range(num_runs))
            claims = [is_claimed(ranking.against_baseline[METHODS[0]]) for ranking in rankings]
            shares.append(f"{np.mean(claims) * 100:.0f}")
        yield f"| {gain * 100:.0f} % | {' | '.join(shares)} |"


def main() -> None:
    """Simulate and print."""
    num_runs = 40 if "--short" in sys.argv else NUM_RUNS
    print(f"{num_runs} runs per number: % covered / false colours / false sentences\n", flush=True)
    tables = (table, sequential, two_passes, one_noisy_method, power)
    for lines in (make_lines(num_runs) for make_lines in tables):
        for line in lines:
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
