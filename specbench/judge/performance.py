"""Checks of MAT and speed, which have noise: statistical tests on a comparison of two runs.

A regression is claimed if `slower` rejects "worse by no more than the limit".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specbench.analysis.cells import CellKey
from specbench.analysis.columns import BASELINE, POOLED
from specbench.analysis.stats.bootstrap import Estimate, Interval
from specbench.analysis.stats.effects import EXACT
from specbench.analysis.stats.significance import GATE_ALPHA, holm, slower
from specbench.judge.checks import Check, Status
from specbench.judge.comparison import MEAN, Comparison
from specbench.judge.limits import Limits
from specbench.judge.pairs import Pair


@dataclass(frozen=True, slots=True)
class _Test:
    """A number with its p-value, before all tests together decide which are significant.

    With `is_rise`, the value may not be higher than the limit.
    """

    cell: CellKey
    name: str
    pair: Pair
    limit: float
    p_value: float | None
    is_rise: bool = False


def check_performance(
    comparisons: Iterable[Comparison], limits: Limits, *, has_speed: bool
) -> Iterator[Check]:
    """The checks of MAT and, with `has_speed`, of speed, for each task and their mean.

    There is a comparison for each load; the tests of all of them are judged together. A MAT that
    rose is a check of its own only if it rose too much. One baseline does not show how far runs
    differ on a machine: the limits stand for that.
    """
    tests = [test for one in comparisons for test in _tests(one, limits, has_speed=has_speed)]
    corrected = holm({i: test.p_value for i, test in enumerate(tests)})
    for test, p_value in zip(tests, corrected.values(), strict=True):
        is_significant = p_value is not None and p_value <= GATE_ALPHA
        if is_significant or not test.is_rise:
            yield _check(test, is_significant=is_significant)


def _tests(comparison: Comparison, limits: Limits, *, has_speed: bool) -> Iterator[_Test]:
    drop, rise, slowdown = limits.max_mat_drop, limits.max_mat_rise, limits.max_slowdown
    for key, cell in comparison.cells.items():
        if key.task == POOLED or (key.task == MEAN and len(comparison.tasks) == 1):
            continue
        if key.method != BASELINE:
            now, before = cell.mat.subject, cell.mat.reference
            p_value = slower(now, before, 1 / (1 - drop) - 1, EXACT)
            yield _Test(key, "MAT", cell.mat, drop, p_value)
            p_value = slower(before, now, rise, EXACT)
            yield _Test(key, "MAT", cell.mat, rise, p_value, is_rise=True)
        if has_speed:
            pairs = [cell.tokens_per_s, cell.speedup][: 1 if key.method == BASELINE else 2]
            p_values = [slower(one.subject, one.reference, slowdown, EXACT) for one in pairs]
            # Both seconds and speedup must show it. A speedup may be unknown, seconds may not.
            known = [p for p in p_values if p is not None]
            p_value = max(known) if p_values[0] is not None else None
            yield _Test(key, "speed", cell.tokens_per_s, slowdown, p_value)


def _check(test: _Test, *, is_significant: bool) -> Check:
    ratio = test.pair.ratio
    if not isinstance(ratio, Estimate):
        return Check(test.name, "skipped", ratio.reason, test.cell, limit=test.limit)
    change = _slowdown(ratio) if test.name == "speed" else _drop(ratio)
    text = _text(change, test.name)
    status: Status = "failed" if is_significant else "passed"
    if is_significant:
        text += f"; {_percent(test.limit)} is allowed"
    if test.is_rise:
        text += ". Too lenient a rule would do that: audit the run, or record a new baseline"
    if test.p_value is None:
        status, text = "skipped", f"too few samples to judge: {text}"
    before, now = test.pair.reference, test.pair.subject
    return Check(
        test.name, status, text, test.cell, change, limit=test.limit, before=before, now=now
    )


def _text(change: Estimate, name: str) -> str:
    """The change in words: "slower by 10.4 % (95 % CI 9.1 to 11.7 %)"."""
    low, high = _ends(change)
    if abs(change.value) < 5e-4 and high - low < 1e-3:
        return "unchanged"
    worse, better = ("slower", "faster") if name == "speed" else ("lower", "higher")
    if is_better := change.value < 0:
        low, high = -high, -low
    span = f" (95 % CI {low * 100:.1f} to {high * 100:.1f} %)" if high - low > 1e-9 else ""
    return f"{better if is_better else worse} by {_percent(abs(change.value))}{span}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %".replace(".0 %", " %")


def _slowdown(ratio: Estimate) -> Estimate:
    """The change of the time per token, from a ratio of speeds."""
    span = ratio.interval
    return Estimate(1 / ratio.value - 1, span and Interval(1 / span.high - 1, 1 / span.low - 1))


def _drop(ratio: Estimate) -> Estimate:
    span = ratio.interval
    return Estimate(1 - ratio.value, span and Interval(1 - span.high, 1 - span.low))


def _ends(change: Estimate) -> tuple[float, float]:
    interval = change.interval
    return (interval.low, interval.high) if interval else (change.value, change.value)
