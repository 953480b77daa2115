"""Check MAT and speed against one baseline by statistical tests on a comparison of two runs.

A regression is claimed if `slower` rejects "worse by no more than is allowed".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.records import POOLED
from specbench.analysis.stats.estimates import Estimate, Interval, Value
from specbench.analysis.stats.significance import GATE_ALPHA, holm, margin, slower
from specbench.analysis.stats.variance import EXACT
from specbench.judge.allowed import Allowed
from specbench.judge.checks import TOO_FEW, Check, Status
from specbench.judge.comparison import MEAN, Comparison
from specbench.judge.pairs import Pair

MOST_TIMES = 10
"""A number is judged only if its test would find a change of this many times the allowed one."""
MOST_UNSEEN = 0.2
"""No test has to find a change below this share, whatever `MOST_TIMES` would require."""
LEAST_SAMPLES = 8
"""Number of samples per task with enough degrees of freedom for a test, whatever their lengths."""
_MOST_DROP = 0.999
"""Upper bound of an allowed drop: a drop by 100 % has no logarithm."""


@dataclass(frozen=True, slots=True)
class _NumberTest:
    """A test of "a number of a cell is worse by no more than is allowed"."""

    cell: CellKey
    name: str
    """The name of the check: MAT or speed."""
    pairs: tuple[Pair, ...]
    """The numbers in both runs. The test fails only if all of them are worse. The first one is
    reported.
    """
    allowed: float
    """The share by which the number may become worse."""
    num_samples: int
    """Samples per task."""
    is_rise: bool = False
    """True if a rise of the number is worse; False if a drop is."""

    @property
    def p_value(self) -> float | None:
        """The largest p-value of any pair; None if nothing can be tested."""
        allowed_rise = math.expm1(self._log_factor(self.allowed))  # the factor - 1
        return _largest([slower(now, before, allowed_rise, EXACT) for now, before in self._sides])

    def smallest(self, level: float) -> float | None:
        """The smallest change, as a share, that would fail at this p-value; None if none can."""
        # from the allowed change to the smallest one that fails, as a logarithm
        distance = _largest([margin(now, before, EXACT, level) for now, before in self._sides])
        if distance is None:
            return None
        log_factor = self._log_factor(self.allowed) + distance
        is_drop = self.name == "MAT" and not self.is_rise
        return -math.expm1(-log_factor) if is_drop else math.expm1(log_factor)

    @property
    def most(self) -> float:
        """The change that the test must be able to find, or else the number is not judged."""
        return max(MOST_TIMES * self.allowed, MOST_UNSEEN)

    def samples_for(self, smallest: float) -> int:
        """The number of samples per task with which the test would find the change `most`, if the
        present samples show no change below `smallest`.

        On the log scale, the smallest change that a test finds lies a fixed number of standard
        errors beyond the allowed one. Standard errors fall as 1 / sqrt(samples), so half the
        distance takes four times the samples. So the ratio of the distances is squared.
        """
        allowed_log = self._log_factor(self.allowed)
        found_distance = self._log_factor(smallest) - allowed_log
        needed_distance = self._log_factor(self.most) - allowed_log
        return math.ceil(self.num_samples * (found_distance / needed_distance) ** 2)

    @property
    def _sides(self) -> list[tuple[Value, Value]]:
        """The new and the old number of each pair, in the order in which `slower` takes them. They
        are swapped if a rise is worse.
        """
        if self.is_rise:
            return [(pair.reference, pair.subject) for pair in self.pairs]
        return [(pair.subject, pair.reference) for pair in self.pairs]

    def _log_factor(self, change: float) -> float:
        """The logarithm of the factor by which a number is worse after this change.

        If the time per token rises by 10 %, the speed is worse by the factor 1.1. If MAT drops by
        10 %, it is worse by the factor 1 / 0.9.
        """
        if self.name == "MAT" and not self.is_rise:
            return -math.log1p(-min(change, _MOST_DROP))
        return math.log1p(change)


def _largest(numbers: Sequence[float | None]) -> float | None:
    """The largest known number, or None if the first (that of tokens/s or MAT) is unknown."""
    if numbers[0] is None:
        return None
    return max(number for number in numbers if number is not None)


def check_performance(
    comparisons: Iterable[Comparison], allowed: Allowed, *, has_speed: bool
) -> Iterator[Check]:
    """Check MAT and, with `has_speed`, speed, for each task and the mean of the tasks.

    There is a comparison for each load. The tests of all loads are judged together. Each MAT is
    also tested for a rise, which yields a check only if the rise is too large. A single baseline
    does not show how far runs differ on a machine, so the allowed change has to cover that.

    A check is skipped if its number is missing. It is also skipped if it does not fail, but its
    test is too weak to find a change of ten times the allowed one or of 20 %, whichever is larger.
    """
    tests = [
        test
        for comparison in comparisons
        for test in _number_tests(comparison, allowed, has_speed=has_speed)
    ]
    # index of a test -> p-value, or None if there is nothing to test or too few samples
    p_values = {test_index: test.p_value for test_index, test in enumerate(tests)}
    num_tested = sum(p_value is not None for p_value in p_values.values())
    level = GATE_ALPHA / max(1, num_tested)  # Bonferroni: the level of a single test
    for test_index, p_value in holm(p_values).items():  # corrected
        test = tests[test_index]
        is_significant = p_value is not None and p_value <= GATE_ALPHA
        if is_significant or not test.is_rise:
            yield _check(test, level, is_significant=is_significant)


def _number_tests(
    comparison: Comparison, allowed: Allowed, *, has_speed: bool
) -> Iterator[_NumberTest]:
    """The tests of a comparison: MAT of every method but vanilla and, with `has_speed`, the speed
    of all methods.

    There are tests for each task and, if there are several, for their mean.
    """
    num_tasks = len(comparison.tasks)
    for key, cell in comparison.cells.items():
        if key.task == POOLED or (key.task == MEAN and num_tasks == 1):
            continue
        num_samples = cell.num_samples
        if key.task == MEAN:  # this cell counts the samples of all tasks
            num_samples //= num_tasks
        speeds: tuple[Pair, ...] = (cell.tokens_per_s,)
        if key.method != BASELINE:
            speeds = (cell.tokens_per_s, cell.speedup)
            mats = (cell.mat,)
            yield _NumberTest(key, "MAT", mats, allowed.max_mat_drop, num_samples)
            yield _NumberTest(key, "MAT", mats, allowed.max_mat_rise, num_samples, is_rise=True)
        if has_speed:
            yield _NumberTest(key, "speed", speeds, allowed.max_slowdown, num_samples)


def _check(test: _NumberTest, level: float, *, is_significant: bool) -> Check:
    """Make the check of a tested number, which fails if the test is significant.

    A missing number is skipped, and so is a number whose test is too weak: the smallest change that
    would fail is unknown, or larger than the change that the test must find (`most`). Then the
    check says how many samples per task it `needs`.

    Args:
        test: a test of MAT or speed of one cell.
        level: the p-value up to which a single test is significant, corrected for the number of
            tests.
        is_significant: True if the number is worse by more than is allowed. It is always True for a
            test of a rise, which has no check otherwise.
    """
    pair = test.pairs[0]  # the others only affect the status
    if not isinstance(pair.ratio, Estimate):  # the number is missing
        return Check(test.name, "skipped", pair.ratio.reason, test.cell, allowed=test.allowed)
    change = _change_for_the_worse(pair.ratio, test.name)  # a share; negative if it is better
    phrase = _change_text(change, test.name)
    needed_samples: int | None = None
    status: Status = "passed"
    # the smallest change that would fail, as a share; None if there are too few samples for any
    smallest = test.smallest(level)
    if is_significant:
        status = "failed"
        phrase += f"; {_percent(test.allowed)} is allowed"
        if test.is_rise:
            phrase += (
                ". An acceptance rule that is too lenient would cause this: audit the run, or "
                "record a new baseline"
            )
    elif smallest is None or smallest > test.most:
        status = "skipped"
        needed_samples = LEAST_SAMPLES  # the least that a test needs
        phrase = f"{TOO_FEW}: {phrase}"
        if smallest is not None:
            phrase += f"; the smallest change that would fail is {_percent(smallest)}"
            needed_samples = max(needed_samples, test.samples_for(smallest))
    return Check(
        test.name,
        status,
        phrase,
        test.cell,
        value=change,
        allowed=test.allowed,
        before=pair.reference,
        now=pair.subject,
        needs=needed_samples,
    )


def _change_for_the_worse(ratio: Estimate, name: str) -> Estimate:
    """The share by which a number became worse: the rise of the time per token, or the drop of MAT.

    `ratio` is this run's number / the baseline's.
    """

    def share(ratio: float) -> float:
        """The share for a ratio of speeds or of MATs."""
        return 1 / ratio - 1 if name == "speed" else 1 - ratio

    interval = ratio.interval
    if interval:  # the highest ratio is the smallest change for the worse
        interval = Interval(share(interval.high), share(interval.low))
    return Estimate(share(ratio.value), interval)


def _change_text(change: Estimate, name: str) -> str:
    """The change for the worse, a share, in words: "slower by 10.4 % (95 % CI 9.1 to 11.7 %)".

    `name` is "speed" or "MAT".
    """
    # A missing interval becomes an interval of width 0.
    interval = change.interval or Interval(change.value, change.value)
    low, high = interval.low, interval.high  # shares; positive is worse
    if abs(change.value) < 5e-4 and high - low < 1e-3:  # a change of 0.05 %, a width of 0.1 %
        return "unchanged"
    word = "slower" if name == "speed" else "lower"
    if change.value < 0:
        word = "faster" if name == "speed" else "higher"
        low, high = -high, -low  # shares by which the number is better
    interval_text = ""
    if high - low > 1e-9:  # more than rounding
        interval_text = f" (95 % CI {low * 100:.1f} to {high * 100:.1f} %)"
    return f"{word} by {_percent(abs(change.value))}{interval_text}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %".replace(".0 %", " %")
