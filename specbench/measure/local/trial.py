"""A trial of several numbers of threads: steps are timed with each in turn until one wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import NamedTuple

from specbench.engine.clock import Phase, Stopwatch
from specbench.settings.step_times import FASTER

FAR = 1.5
"""A number of threads is dropped if its steps take this many times as long as the best number's."""
FAR_STEPS = 7
"""Steps that both numbers of threads must have before FAR applies."""
HOPELESS = 10.0
"""Like FAR, for numbers of threads that are dropped after HOPELESS_STEPS already."""
HOPELESS_STEPS = 2
"""Steps that both numbers of threads must have before HOPELESS applies."""
MAX_STEPS = 200
"""Most steps for which a number is tried."""
LEAST_S = 1e-9
"""Least seconds that a step counts with: a clock may go back or stand still."""
LEVEL = 0.01
"""Significance level of the sign test by which the step times of two numbers are compared."""


class _Choice(NamedTuple):
    """The choice of a number so far."""

    best: int
    is_settled: bool
    """True if more steps would not change it."""


class Trial:
    """Seconds of steps with several numbers of threads, for at most `seconds`.

    `kept` stays unless another number is faster by more than `FASTER`. A sign test of neighbouring
    steps decides this, so that a few steps that waited for another program do not matter.
    """

    def __init__(self, counts: Sequence[int], kept: int, seconds: float) -> None:
        self._counts = [kept, *(count for count in counts if count != kept)]
        self._times: dict[int, list[float]] = {count: [] for count in self._counts}
        self._ends = perf_counter() + seconds

    def next(self) -> int | None:
        """The number to try next; None if the choice is made, or the time is up."""
        num_steps = [len(self._times[count]) for count in self._counts]
        if perf_counter() > self._ends or num_steps[0] >= MAX_STEPS or len(num_steps) < 2:
            return None
        is_round_over = len({*num_steps}) == 1
        if is_round_over and self._choose().is_settled:
            return None
        return min(self._counts, key=lambda count: len(self._times[count]))

    def add(self, count: int, seconds: float) -> None:
        """Keep the seconds of a step with `count` threads, and drop counts far from the best.

        `_times` has the seconds of all steps by count, `_counts` the counts not dropped yet. If a
        count is far slower than the best and the best is larger, all counts below it but the
        usual one are dropped too. The usual number is the first of `_counts`; if it is dropped, the
        best takes its place.
        """
        self._times[count].append(max(seconds, LEAST_S))
        medians = self.medians  # seconds, by number of threads
        best = min(medians, key=medians.__getitem__)  # the number with the least seconds
        for tried in medians:  # numbers of threads that were tried
            num_steps = min(len(self._times[tried]), len(self._times[best]))
            is_far = _is_far(medians[tried], medians[best], num_steps)
            if tried in self._counts and is_far:  # not dropped before
                too_small = tried if best > tried else 0  # counts up to it are dropped
                usual = best if tried == self._counts[0] else self._counts[0]
                others = [
                    other
                    for other in self._counts
                    if other not in (usual, tried) and other > too_small
                ]
                self._counts = [usual, *others]

    def measure(self, seconds: Callable[[], float]) -> Trial:
        """Fill the trial with the times that `seconds` returns."""
        while (count := self.next()) is not None:
            set_threads(count)
            self.add(count, seconds())
        return self

    @property
    def best(self) -> int:
        """The number chosen so far, or a number whose steps are HOPELESS times as fast.

        For such a difference a single step is enough.
        """
        chosen = self._choose().best
        medians = self.medians
        fastest = min(medians, key=medians.__getitem__, default=chosen)
        is_far = fastest != chosen and medians[chosen] > HOPELESS * medians[fastest]
        return fastest if is_far else chosen

    @property
    def medians(self) -> dict[int, float]:
        """Median seconds of steps, by each number of threads that was tried."""
        return {count: median(times) for count, times in self._times.items() if times}

    def _choose(self) -> _Choice:
        """The fastest number of threads so far; settled if the sign tests have decided on all.

        It begins with the usual number, the first of `_counts`, which are the numbers still tried;
        a later one has to be faster. `_times` has the seconds of steps by number.
        """
        best = self._counts[0]
        is_settled = True
        for count in self._counts[1:]:
            is_faster = _is_faster(self._times[count], self._times[best])
            if is_faster is None:  # the times do not decide yet
                is_settled = False
            elif is_faster:
                best = count
        return _Choice(best, is_settled)


def _is_far(seconds: float, best_s: float, num_steps: int) -> bool:
    """True if steps are so much slower than the best that no more of them are tried."""
    if num_steps >= FAR_STEPS and seconds > FAR * best_s:
        return True
    return num_steps >= HOPELESS_STEPS and seconds > HOPELESS * best_s


def _is_faster(times: Sequence[float], others: Sequence[float]) -> bool | None:
    """True if the median of `others` / `times` is above `FASTER`; None if it is unclear.

    A sign test of paired steps: with equal chances, at most `LEVEL` of all cases are as clear.
    """
    from scipy.special import bdtr, bdtrc

    ratios = [other / time for time, other in zip(times, others, strict=False)]
    num_above = sum(ratio > FASTER for ratio in ratios)
    if num_above and bdtrc(num_above - 1, len(ratios), 0.5) < LEVEL:
        return True
    if ratios and bdtr(num_above, len(ratios), 0.5) < LEVEL:
        return False
    return None


class TrialOver(Exception):
    """Ends the completion whose steps were tried."""


class TrialWatch(Stopwatch):
    """Times the steps of a completion for a trial, and changes the threads between steps."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._began = 0.0
        self._count: int | None = None  # None in the first step, which reads the prompt too
        self.num_steps = 0

    def lap(self, phase: Phase) -> None:
        """Give the trial the seconds of the step that ends, and set the threads of the next one.

        A step ends with its last phase, "host"; other phases are ignored. `_count` is the number
        of threads of the step that ends, `_began` the time at which it began.

        Raises:
            TrialOver: the trial needs no more steps.
        """
        if phase != "host":
            return
        if self._count is not None:
            self._trial.add(self._count, perf_counter() - self._began)
            self.num_steps += 1
        self._count = self._trial.next()  # the number to try; None if the trial is over
        if self._count is None:
            raise TrialOver
        set_threads(self._count)
        self._began = perf_counter()


def set_threads(count: int) -> None:
    """Set torch's number of threads, and start their pool with an operation outside timed steps."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
        torch.ones(1 << 16).add_(1)
