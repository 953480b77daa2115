"""The settings of methods that are fastest here: measured times of steps, known acceptance.

Decided once, in the warm-up. Methods without known acceptance get their paper's draft, cut to the
rows that are cheap here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from operator import truediv
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.settings.acceptance import Acceptance, AcceptanceFile
from specbench.settings.grids import ROWS
from specbench.settings.run_method import RunMethod
from specbench.types import BASELINE

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter

FASTER = 1.05
"""A number of threads stays unless another is faster by this factor."""
WITHIN, LIKELY = 1.03, 1.2
"""Settings within the first factor of the best are equal: the paper's win, else the smallest.
Those beyond the second are dropped after one trial.
"""
LEAST_MAT = 1.15
"""Settings that accept fewer tokens are not tried: they gain less than a time is wrong by."""
ROUNDS, ROUNDS_S = 4, 2.0
"""Rounds after the first trial, and seconds after which no other round begins. A round tries each
remaining setting once.
"""
CUT_COST = 1.5
"""Cost of a step, in steps of vanilla, up to which a draft of unknown acceptance is cut."""


Steps = Callable[[], float]
"""Takes some whole steps, drafting included, and returns the mean seconds of one."""
Prepare = Callable[[RunMethod, int], Steps]
"""Makes a method ready to decode with a number of threads."""


def shown(seconds: Mapping[int, float]) -> dict[str, float]:
    """Times by number of threads, as the header holds them."""
    return {str(count): round(one, 6) for count, one in seconds.items()}


class StepTimes(NamedTuple):
    """Seconds of a step of the target by rows and number of threads."""

    seconds: dict[int, dict[int, float]]

    def at(self, rows: float) -> float:
        """Seconds of a step over `rows` rows, linear between those measured."""
        best = [(n, min(by_threads.values())) for n, by_threads in self.seconds.items()]
        for (below, first), (above, second) in pairwise(best):
            if rows <= above or above == best[-1][0]:
                return first + (second - first) * (rows - below) / (above - below)
        return best[0][1]

    def threads_at(self, rows: float) -> int:
        """The best number of threads for `rows` rows."""
        by_threads = self.seconds[min(self.seconds, key=lambda n: abs(n - rows))]
        return min(by_threads, key=by_threads.__getitem__)

    def shown(self) -> dict[str, dict[str, float]]:
        """As the header holds them."""
        return {str(n): shown(by_threads) for n, by_threads in self.seconds.items()}


def rows_to_time(
    methods: Sequence[RunMethod],
    drafters: Mapping[str, Drafter],
    known: Callable[[RunMethod], Sequence[Acceptance]],
) -> Sequence[int]:
    """The `ROWS` that the choice of settings needs, up to the rows of the largest draft.

    Arguments are as in `tuned`.
    """
    largest = 1.0
    for one in methods:
        with suppress(Exception):  # its samples will fail too
            sizes = [entry.rows for entry in known(one)] or drafters[one.label].tree_sizes
            largest = max(largest, *sizes)
    return ROWS[: bisect_left(ROWS, largest) + 1]


def tuned(
    methods: Sequence[RunMethod],
    drafters: Mapping[str, Drafter],
    times: StepTimes,
    known: Callable[[RunMethod], Sequence[Acceptance]],
    prepare: Prepare,
) -> list[RunMethod]:
    """The methods that get settings, with these.

    Args:
        methods: with the paper's options.
        drafters: of these, by label.
        times: of the target's steps.
        known: the acceptance of a method with several settings, the paper's first.
        prepare: makes a method with some settings ready for its trials.
    """
    found = []
    for one in methods:
        with suppress(Exception):  # its samples will fail too
            entries = known(one)
            if one.method.name == BASELINE or one.settings or _is_given(one, entries):
                continue
            if entries:
                found.append(one.tuned(_fastest(one, entries, times, prepare), "auto"))
            else:
                found += _cut(one, drafters[one.label], times)
    return found


def _is_given(one: RunMethod, entries: Sequence[Acceptance]) -> bool:
    """True if the user chose one of the options that are tuned."""
    if entries:
        return bool({name for entry in entries for name in entry.options} & {*one.asked.given})
    small = _sized(one.options, 2)
    return any(getattr(small, name) != getattr(one.options, name) for name in one.asked.given)


def _fastest(
    one: RunMethod, entries: Sequence[Acceptance], times: StepTimes, prepare: Prepare
) -> dict[str, Any]:
    """The options of the fastest settings. The paper's are tried too.

    A step is never faster than the target's share of it, so that most settings need no trial.
    """
    paper = entries[0]
    others = [entry for entry in entries[1:] if entry.mat >= LEAST_MAT]
    tried: list[tuple[Acceptance, Steps, list[float]]] = []
    for entry in [paper, *sorted(others, key=lambda entry: times.at(entry.rows) / entry.mat)]:
        likely = LIKELY * min((costs[0] for *_, costs in tried), default=float("inf"))
        if times.at(entry.rows) / entry.mat <= likely:
            steps = prepare(one.tuned(entry.options, ""), times.threads_at(entry.rows))
            tried.append((entry, steps, [steps() / entry.mat]))
    likely = LIKELY * min(costs[0] for *_, costs in tried)
    tried = [each for each in tried if each[2][0] <= likely]
    ends = perf_counter() + ROUNDS_S
    for _ in range(ROUNDS if len(tried) > 1 else 0):
        if perf_counter() < ends:
            for entry, steps, costs in tried:
                costs.append(steps() / entry.mat)
    usual = [median(costs) for costs in zip(*(costs for *_, costs in tried), strict=True)]
    ratios = [median(map(truediv, costs, usual)) for *_, costs in tried]
    near = [tried[i][0] for i, ratio in enumerate(ratios) if ratio <= WITHIN * min(ratios)]
    return (paper if paper in near else min(near, key=lambda entry: entry.rows)).options


def _cut(one: RunMethod, drafter: Drafter, times: StepTimes) -> list[RunMethod]:
    """The method with its paper's draft cut to the rows that are cheap here, if it is larger."""
    cheap = max(n for n in times.seconds if times.at(n) <= CUT_COST * times.at(1))
    made = _sized(one.options, max(2, cheap))
    if max(drafter.tree_sizes) <= cheap or made == one.options:
        return []
    names = type(made).__dataclass_fields__
    return [one.tuned({name: getattr(made, name) for name in names}, "cut")]


def _sized(options: Any, rows: int) -> Any:
    """A method's options with steps of at most `rows` rows, in the paper's shape if possible."""
    if hasattr(options, "sized"):
        return options.sized(rows)
    if hasattr(options, "nodes"):
        return replace(options, nodes=rows)
    if hasattr(options, "num_tokens"):
        return replace(options, num_tokens=min(options.num_tokens, max(1, rows - 1)))
    return options


def acceptance_of(file: AcceptanceFile | None, one: RunMethod) -> Sequence[Acceptance]:
    """The known acceptance of a method; none with options that change what it accepts."""
    if file is None or {"weights", "datastore", "scope", "other"} & {*one.asked.given}:
        return ()
    weights = one.describe().weights
    kind = one.method.weights_with(one.options)
    return file.of(one.method.name, kind, weights.files if weights else {})
