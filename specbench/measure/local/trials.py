"""Steps with several numbers of CPU threads, in turns, until one is known to be the fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

from specbench.engine.clock import Phase, Stopwatch

FASTER = 1.05
"""A number stays unless another is faster by this factor."""
HOPELESS, LEAST_STEPS = (1.5, 10.0), (7, 2)
"""A number is dropped once it takes 1.5 times the best in 7 steps of both, or 10 times in 2."""
MOST_STEPS = 200
"""A number is tried for no more steps."""
LEVEL = 0.01
"""Chance that the median ratio of two numbers is on the other side of `FASTER`."""


class Trial:
    """Seconds of steps with several numbers of threads, for at most `seconds`.

    `kept` stays unless another number is faster by more than `FASTER`. That is tested by the
    signs of differences between neighbours in time, so that a few steps that waited for
    another program do not matter.
    """

    def __init__(self, counts: Sequence[int], kept: int, seconds: float) -> None:
        self._counts = [kept, *(count for count in counts if count != kept)]
        self._times: dict[int, list[float]] = {count: [] for count in self._counts}
        self._ends = perf_counter() + seconds

    def next(self) -> int | None:
        """The number to try next; None if the choice is made, or the time is over."""
        turn = min(self._counts, key=lambda count: len(self._times[count]))
        num_steps = [len(self._times[count]) for count in self._counts]
        is_over = perf_counter() > self._ends or num_steps[0] >= MOST_STEPS
        if is_over or len(num_steps) < 2 or (len({*num_steps}) == 1 and self._choose()[1]):
            return None
        return turn

    def add(self, count: int, seconds: float) -> None:
        """Keep the time of a step, and drop numbers that are far from the best.

        Fewer threads than a number that is far behind a larger one are not tried. If the
        number that is kept is dropped, the best takes its place.
        """
        self._times[count].append(seconds)
        medians, times = self.medians, self._times
        best = min(medians, key=medians.__getitem__)
        for one, own in medians.items():
            num_steps = min(len(times[one]), len(times[best]))
            is_far = any(
                num_steps >= least and own > factor * medians[best]
                for factor, least in zip(HOPELESS, LEAST_STEPS, strict=True)
            )
            if one in self._counts and is_far:
                least = one if best > one else 0
                kept = best if one == self._counts[0] else self._counts[0]
                others = [c for c in self._counts if c not in (kept, one) and c > least]
                self._counts = [kept, *others]

    def measure(self, seconds: Callable[[], float]) -> Trial:
        """Fill it with the times that `seconds` returns."""
        while (count := self.next()) is not None:
            set_threads(count)
            self.add(count, seconds())
        return self

    @property
    def best(self) -> int:
        """The fastest number, or the one that is kept, unless even one step tells that it is
        far behind.
        """
        best, medians = self._choose()[0], self.medians
        fastest = min(medians, key=medians.__getitem__, default=best)
        is_far = fastest != best and medians[best] > HOPELESS[1] * medians[fastest]
        return fastest if is_far else best

    @property
    def medians(self) -> dict[int, float]:
        """Median seconds by number of threads, of those that were tried."""
        return {count: median(times) for count, times in self._times.items() if times}

    def _choose(self) -> tuple[int, bool]:
        """The best number so far, and True if more steps would not change it."""
        best, is_settled = self._counts[0], True
        for count in self._counts[1:]:
            is_faster = _is_faster(self._times[count], self._times[best])
            best = count if is_faster else best
            is_settled &= is_faster is not None
        return best, is_settled


def _is_faster(times: Sequence[float], others: Sequence[float]) -> bool | None:
    """True if the median of `others` / `times` is above `FASTER`, None if it cannot be told."""
    from scipy.special import bdtr, bdtrc

    ratios = [other / own for own, other in zip(times, others, strict=False)]
    above = sum(ratio > FASTER for ratio in ratios)
    if above and bdtrc(above - 1, len(ratios), 0.5) < LEVEL:
        return True
    return False if ratios and bdtr(above, len(ratios), 0.5) < LEVEL else None


class TrialOver(Exception):
    """Ends the completion whose steps were tried."""


class TrialWatch(Stopwatch):
    """Times the steps of a completion for a trial, and changes the number between them."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._began = 0.0
        self._count: int | None = None  # in the first step, which reads the prompt too
        self.num_steps = 0

    def lap(self, phase: Phase) -> None:
        if phase != "host":
            return
        if self._count is not None:
            self._trial.add(self._count, perf_counter() - self._began)
            self.num_steps += 1
        self._count = self._trial.next()
        if self._count is None:
            raise TrialOver
        set_threads(self._count)
        self._began = perf_counter()


def set_threads(count: int) -> None:
    """Set torch's number of threads. Their pool starts in an operation that nobody waits for."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
        torch.ones(1 << 16).add_(1)
