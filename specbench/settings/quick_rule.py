"""The quick rule of `--settings auto`: measured times of steps, known acceptance, a few trials.

Settings are chosen once, in the warm-up. Methods without known acceptance get their paper's
draft, cut to the rows that are cheap here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import truediv
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specbench.settings.acceptance import Acceptance, AcceptanceFile
from specbench.settings.grids import ROWS
from specbench.settings.run_method import RunMethod
from specbench.settings.step_times import StepTimes
from specbench.types import BASELINE

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter

EQUAL = 1.03
"""Settings that cost at most this many times the cheapest count as equally fast. If the paper's
settings are among them, they are chosen, or else the settings with the fewest rows.
"""
LIKELY = 1.2
"""Settings that cost more than this many times the cheapest are not tried again: the error of a
trial is smaller than that.
"""
LEAST_MAT = 1.15
"""Settings with a smaller MAT are not tried: they gain less than the error of a measured time."""
NUM_ROUNDS = 4
"""Rounds after the first trial. Each tries every remaining setting once."""
ROUNDS_S = 2.0
"""No round begins after this many seconds, so that a warm-up stays short."""
CUT_COST = 1.5
"""A draft of unknown acceptance is cut until its step costs at most this many steps of vanilla."""
CHANGE_ACCEPTANCE = {"weights", "datastore", "scope"}
"""Options that make the known acceptance of a method invalid."""

TimeStep = Callable[[], float]
"""Takes some whole steps, drafting included, and returns the mean seconds of one."""
Prepare = Callable[[RunMethod, int], TimeStep]
"""Makes a method ready to decode with a number of threads."""
KnownAcceptance = Callable[[RunMethod], Sequence[Acceptance]]
"""The acceptance of a method with several settings, the paper's first; none if unknown."""


@dataclass(slots=True)
class Trial:
    """A trial of some settings of a method."""

    acceptance: Acceptance
    """The settings, with the tokens that a step emits."""
    time_step: TimeStep
    """The function that tries them."""
    costs_s: list[float] = field(default_factory=list)
    """Seconds per token of each trial."""

    def run(self) -> None:
        """Try the settings once."""
        self.costs_s.append(self.time_step() / self.acceptance.mat)


def rows_to_time(
    methods: Sequence[RunMethod],
    drafters: Mapping[str, Drafter],
    known_acceptance: KnownAcceptance,
) -> Sequence[int]:
    """The numbers of rows whose steps have to be timed before settings are chosen.

    They are the numbers of `ROWS` up to the rows of the largest draft, and the next number. A step
    has a row for each node of its tree.

    Args:
        methods: with the paper's options.
        drafters: drafters of these methods, by label.
        known_acceptance: returns the MAT of a method and the mean rows of a step, with several
            settings; empty if they are unknown.
    """
    most_rows = 1.0  # may be a mean over steps
    for method in methods:
        with suppress(Exception):  # a broken method: its samples report the error
            # rows of the settings that may be chosen, else of the trees that it may draft
            sizes: Sequence[float] = [acceptance.rows for acceptance in known_acceptance(method)]
            if not sizes:
                sizes = [*drafters[method.label].tree_sizes]
            most_rows = max(most_rows, *sizes)
    # up to the first of `ROWS` that is not below `most_rows`
    return ROWS[: bisect_left(ROWS, most_rows) + 1]


def choose_settings(
    methods: Sequence[RunMethod],
    drafters: Mapping[str, Drafter],
    times: StepTimes,
    known_acceptance: KnownAcceptance,
    prepare: Prepare,
) -> list[RunMethod]:
    """The methods whose options are changed for this machine, with the chosen options.

    A method of known acceptance gets its fastest settings. Any other method gets its paper's draft,
    cut to the rows that are cheap here. Options that the user gave stay.

    Args:
        methods: with the paper's options.
        drafters: drafters of these methods, by label.
        times: seconds of the target's steps, by rows.
        known_acceptance: returns the MAT of a method and the mean rows of a step, with several
            settings; empty if they are unknown.
        prepare: makes a method with some settings ready to decode with a number of threads, and
            returns a function that takes some steps and returns the mean seconds of one.
    """
    changed = []
    for method in methods:
        with suppress(Exception):  # a broken method: its samples report the error
            settings = known_acceptance(method)  # settings with rows and MAT; none if unknown
            # Vanilla has no settings to choose, and `settings` is not None if a file gave some.
            is_fixed = method.method.name == BASELINE or method.settings is not None
            # options that the user gave are not chosen anew
            if is_fixed or _is_chosen_by_user(method, settings):
                continue
            if settings:
                options = _fastest_options(method, settings, times, prepare)
                changed.append(method.tuned(options, source="auto"))  # the source, in the header
            else:
                cut_method = _cut_to_cheap_rows(method, drafters[method.label], times)
                if cut_method is not None:  # the draft had more rows than are cheap
                    changed.append(cut_method)
    return changed


def _is_chosen_by_user(method: RunMethod, tried: Sequence[Acceptance]) -> bool:
    """True if the user gave one of the options that would be chosen."""
    given = method.decided_by_user
    if tried:
        return any(given & acceptance.options.keys() for acceptance in tried)
    options = method.options
    smallest = options.sized(2)
    return any(getattr(smallest, name) != getattr(options, name) for name in given)


def _fastest_options(
    method: RunMethod, settings: Sequence[Acceptance], times: StepTimes, prepare: Prepare
) -> dict[str, Any]:
    """The options of a method's fastest settings, by their seconds per token in short trials.

    A step is never faster than the target's part of it, so most settings need no trial.
    Among equally fast settings the paper's win, or else the settings with the fewest rows.

    Args:
        method: with the paper's options.
        settings: with their mean rows of a step and their MAT, the paper's first.
        times: seconds of the target's steps, by rows and threads.
        prepare: makes the method with some settings ready to decode with a number of threads, and
            returns a function that takes some steps and returns the mean seconds of one.
    """

    def least_cost_s(acceptance: Acceptance) -> float:
        """Seconds per token if drafts took no time."""
        return times.at(acceptance.rows) / acceptance.mat

    paper = settings[0]
    # With fewer accepted tokens, settings are not worth a trial.
    others = [acceptance for acceptance in settings[1:] if acceptance.mat >= LEAST_MAT]
    trials: list[Trial] = []  # the first trial of each of these settings has run
    for acceptance in [paper, *sorted(others, key=least_cost_s)]:
        best_cost_s = min((trial.costs_s[0] for trial in trials), default=float("inf"))
        # LIKELY: a factor by which one trial may be wrong
        if least_cost_s(acceptance) <= LIKELY * best_cost_s:
            tuned_method = method.tuned(acceptance.options, source="")  # only for this trial
            time_step = prepare(tuned_method, times.threads_at(acceptance.rows))
            trials.append(Trial(acceptance, time_step))
            trials[-1].run()  # adds its seconds per token to `costs_s`
    best_cost_s = min(trial.costs_s[0] for trial in trials)
    likely_trials = [trial for trial in trials if trial.costs_s[0] <= LIKELY * best_cost_s]
    _try_again(likely_trials)  # a few times, in turn
    # cost of each trial's settings / the usual cost in the same round
    ratios = _ratios_to_usual(likely_trials)
    least_ratio = min(ratios)
    equally_fast = [
        trial.acceptance
        for trial, ratio in zip(likely_trials, ratios, strict=True)
        if ratio <= EQUAL * least_ratio  # EQUAL: a factor that is no difference
    ]
    if paper in equally_fast:
        return paper.options
    return min(equally_fast, key=lambda acceptance: acceptance.rows).options


def _try_again(trials: Sequence[Trial]) -> None:
    """Try several settings in up to `NUM_ROUNDS` more rounds, none begun after `ROUNDS_S` seconds.

    Each round adds a cost to every trial, the seconds per token of its settings. A single trial is
    not repeated, since there is nothing to compare.
    """
    if len(trials) < 2:
        return
    end_s = perf_counter() + ROUNDS_S
    for _ in range(NUM_ROUNDS):
        if perf_counter() >= end_s:
            return
        for trial in trials:
            trial.run()


def _ratios_to_usual(trials: Sequence[Trial]) -> list[float]:
    """The cost of each trial's settings / the median cost in the same round, the median of rounds.

    Another program that slows down a whole round changes no ratio.
    """
    rounds = zip(*(trial.costs_s for trial in trials), strict=True)
    usual_s = [median(costs_s) for costs_s in rounds]
    return [median(map(truediv, trial.costs_s, usual_s)) for trial in trials]


def _cut_to_cheap_rows(method: RunMethod, drafter: Drafter, times: StepTimes) -> RunMethod | None:
    """The method with its paper's draft cut to the rows that are cheap here; None if it fits."""
    most_s = CUT_COST * times.at(1)
    cheap_rows = max(rows for rows in times.seconds if times.at(rows) <= most_s)
    options = method.options.sized(max(2, cheap_rows))
    if max(drafter.tree_sizes) <= cheap_rows or options == method.options:
        return None
    return method.tuned(options.as_dict(), "cut")


def acceptance_of(file: AcceptanceFile | None, method: RunMethod) -> Sequence[Acceptance]:
    """The known acceptance of a method; none with options that change its acceptance.

    SAM's option `other` names the method that drafts if SAM does not copy. It is part of the name.
    """
    given = method.asked.given
    if file is None or CHANGE_ACCEPTANCE & set(given):
        return ()
    name = method.method.name
    if "other" in given:
        name = f"{name}:other={given['other']}"
    weights = method.describe().weights
    weight_files = weights.files if weights else {}
    return file.of(name, method.checkpoint, weight_files)
