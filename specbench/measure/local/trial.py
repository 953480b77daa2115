"""Try numbers of threads, by timing steps with each number in turn until one wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import NamedTuple

from specbench.engine.clock import Phase, Stopwatch
from specbench.settings.step_times import FASTER

FAR = 1.5
"""A number of threads is dropped if its steps take more than FAR times as long as the best's."""
FAR_STEPS = 7
"""Steps that must be timed with both numbers of threads before FAR applies."""
HOPELESS = 10.0
"""Like FAR, but for much slower numbers, which are dropped after only HOPELESS_STEPS steps."""
HOPELESS_STEPS = 2
"""Steps that must be timed with both numbers of threads before HOPELESS applies."""
MAX_STEPS = 200
"""The most steps timed with one number."""
LEAST_S = 1e-9
"""The fewest seconds that a step counts as, since a clock may go back or stand still."""
LEVEL = 0.01
"""Significance level of the sign test by which the step times of two numbers are compared."""


class _Choice(NamedTuple):
    """The number of threads chosen so far."""

    best: int
    is_settled: bool
    """True if more steps would not change it."""


class Trial:
    """Times steps with several numbers of threads, for at most `seconds`.

    The number `kept` wins unless another is faster by more than `FASTER`. A sign test of
    neighbouring steps decides this, so that a few steps that waited for other programs do not
    matter.
    """

    def __init__(self, counts: Sequence[int], kept: int, seconds: float) -> None:
        # The numbers of threads that are not dropped yet: the usual number first.
        self._counts = [kept, *(count for count in counts if count != kept)]
        # The seconds of all steps by number of threads.
        self._times: dict[int, list[float]] = {count: [] for count in self._counts}
        self._ends_s = perf_counter() + seconds

    def next(self) -> int | None:
        """The number to try next, or None if the choice is made, or time or steps are used up.

        Each round times one step with every number that is not dropped.
        """
        num_steps = [len(self._times[count]) for count in self._counts]  # steps of each number
        if perf_counter() > self._ends_s or num_steps[0] >= MAX_STEPS or len(num_steps) < 2:
            return None
        is_round_over = len({*num_steps}) == 1
        if is_round_over and self._choose().is_settled:
            return None
        return min(self._counts, key=lambda count: len(self._times[count]))

    def add(self, count: int, seconds: float) -> None:
        """Keep the seconds of a step with `count` threads, and drop the numbers that are far too
        slow.

        `_is_far` compares each number with the best. If the best number is larger than the dropped
        number, all numbers below the dropped number are dropped too, except the usual number (the
        first of `_counts`). If the usual number itself is dropped, the best number takes its place.
        """
        self._times[count].append(max(seconds, LEAST_S))
        median_s = self.medians  # seconds of a step by number of threads
        best = min(median_s, key=median_s.__getitem__)
        for slow in median_s:  # each number may be far too slow
            num_steps = min(len(self._times[slow]), len(self._times[best]))  # of both numbers
            is_far = _is_far(median_s[slow], median_s[best], num_steps)
            if is_far and slow in self._counts:  # not dropped before
                largest_dropped = slow if best > slow else 0  # drop this and smaller numbers
                usual = best if slow == self._counts[0] else self._counts[0]
                kept_counts = [
                    kept_count
                    for kept_count in self._counts
                    if kept_count not in (usual, slow) and kept_count > largest_dropped
                ]
                self._counts = [usual, *kept_counts]

    def measure(self, time_step: Callable[[], float]) -> Trial:
        """Run steps until the trial is over. `time_step` runs a step and returns its seconds."""
        while (count := self.next()) is not None:
            set_threads(count)
            self.add(count, time_step())
        return self

    @property
    def best(self) -> int:
        """The number chosen so far, or another whose steps are more than HOPELESS times as fast.

        For such a difference a single step is enough.
        """
        chosen = self._choose().best
        median_s = self.medians
        fastest = min(median_s, key=median_s.__getitem__, default=chosen)
        is_far = fastest != chosen and median_s[chosen] > HOPELESS * median_s[fastest]
        return fastest if is_far else chosen

    @property
    def medians(self) -> dict[int, float]:
        """The median seconds of a step, for each number of threads that was tried."""
        return {count: median(times) for count, times in self._times.items() if times}

    def _choose(self) -> _Choice:
        """The best number of threads so far, settled if every sign test has decided.

        The usual number, the first of `_counts`, is the best until a sign test finds another number
        faster. That number is then the best, with which the following numbers are compared.
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


def _is_far(median_s: float, best_s: float, num_steps: int) -> bool:
    """True if a number's steps are so much slower than the best's that it is tried no more.

    `median_s` and `best_s` are the median seconds of a step with this number and with the best.
    Each is over at least `num_steps` steps.
    """
    if num_steps >= FAR_STEPS and median_s > FAR * best_s:
        return True
    return num_steps >= HOPELESS_STEPS and median_s > HOPELESS * best_s


def _is_faster(steps_s: Sequence[float], best_steps_s: Sequence[float]) -> bool | None:
    """True if steps are faster than the best number's by more than a factor of FASTER.

    False if they are not, None if that is unclear. `steps_s` and `best_steps_s` have the seconds of
    steps that were timed in pairs. A sign test decides whether the median ratio of pairs is above
    or below FASTER: if it were equal to FASTER, a result as clear as this would have a probability
    below LEVEL.
    """
    from scipy.special import bdtr, bdtrc  # the lower and upper tail of a binomial distribution

    ratios = [best_s / step_s for step_s, best_s in zip(steps_s, best_steps_s, strict=False)]
    num_above = sum(ratio > FASTER for ratio in ratios)
    if num_above and bdtrc(num_above - 1, len(ratios), 0.5) < LEVEL:  # this many, or more
        return True
    if ratios and bdtr(num_above, len(ratios), 0.5) < LEVEL:  # this many, or fewer
        return False
    return None


class TrialOver(Exception):
    """Ends a completion when the trial of its steps is over."""


class TrialWatch(Stopwatch):
    """Times the steps of a completion for a trial, and changes the threads between steps."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._began_s = 0.0  # the time at which the present step began
        # The number of threads of the present step; None in the first step, which includes reading
        # the prompt and is not timed.
        self._count: int | None = None
        self.num_steps = 0  # steps that were timed

    def lap(self, phase: Phase) -> None:
        """When a step ends, give the trial its seconds, and set the threads of the next step.

        `phase` is the phase that has just ended. The last phase of a step is "host"; at the end of
        any other phase, nothing is done.

        Raises:
            TrialOver: the trial needs no more steps.
        """
        if phase != "host":
            return
        if self._count is not None:
            self._trial.add(self._count, perf_counter() - self._began_s)
            self.num_steps += 1
        self._count = self._trial.next()  # the number to try; None if the trial is over
        if self._count is None:
            raise TrialOver
        set_threads(self._count)
        self._began_s = perf_counter()


def set_threads(count: int) -> None:
    """Set torch's number of threads, and start them with an operation outside timed steps."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
        torch.ones(1 << 16).add_(1)
