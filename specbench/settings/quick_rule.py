"""The quick rule of `--settings auto`, which chooses settings in the warm-up of a run.

It uses measured times of steps, known acceptance and a few trials. A method without known
acceptance gets the draft of its paper, cut to the rows that are cheap on this machine.
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
"""Settings count as equally fast if they cost at most this many times the cheapest. If the paper's
settings are among these, they are chosen; otherwise those with the fewest rows.
"""
LIKELY = 1.2
"""Settings are not tried again if they cost more than this many times the cheapest. The error of a
trial is smaller than that.
"""
LEAST_MAT = 1.15
"""Settings with a smaller MAT are not tried. They gain less than the error of a measured time."""
NUM_ROUNDS = 4
"""The number of rounds after the first trial. Each round tries every remaining setting once."""
ROUNDS_S = 2.0
"""No round begins after this many seconds, so that a warm-up stays short."""
CUT_COST = 1.5
"""A draft of unknown acceptance is cut until its step costs at most this many steps of vanilla."""
CHANGE_ACCEPTANCE = {"weights", "datastore", "scope"}
"""Options that make the known acceptance of a method invalid."""

TimeStep = Callable[[], float]
"""A function that runs a few whole steps, drafting included, and returns their mean seconds."""
Prepare = Callable[[RunMethod, int], TimeStep]
"""A function that makes a method ready to decode with a number of threads."""
KnownAcceptance = Callable[[RunMethod], Sequence[Acceptance]]
"""A function that returns the acceptance of a method with several settings, beginning with the
paper's. The result is empty if it is unknown.
"""


@dataclass(slots=True)
class Trial:
    """The trials of one setting of a method."""

    acceptance: Acceptance
    """The setting, and the mean tokens that a step emits with it."""
    time_step: TimeStep
    """Times a few steps with the setting."""
    costs_s: list[float] = field(default_factory=list)
    """Seconds per token, one number per trial."""

    def run(self) -> None:
        """Try the setting once more."""
        self.costs_s.append(self.time_step() / self.acceptance.mat)


def rows_to_time(
    methods: Sequence[RunMethod],
    drafters: Mapping[str, Drafter],
    known_acceptance: KnownAcceptance,
) -> Sequence[int]:
    """Return the numbers of rows whose steps must be timed before settings are chosen.

    They are the numbers in `ROWS` up to the rows of the largest draft, and the next larger one. A
    step has a row for each node of its tree.

    Args:
        methods: with the paper's options.
        drafters: drafters of these methods, by label.
        known_acceptance: returns the MAT of a method and the mean rows of a step for several
            settings; empty if they are unknown.
    """
    most_rows = 1.0  # may be a mean over steps
    for method in methods:
        with suppress(Exception):  # a broken method: its samples report the error
            # rows of the settings that may be chosen, or else of the trees that it may draft
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
    """Choose options for this machine; return the methods whose options change.

    A method of known acceptance gets its fastest settings. Any other method gets its paper's draft,
    cut to the rows that are cheap here. Options that the user gave stay.

    Args:
        methods: with the paper's options.
        drafters: drafters of these methods, by label.
        times: seconds of the target's steps, by rows.
        known_acceptance: returns the MAT of a method and the mean rows of a step for several
            settings; empty if they are unknown.
        prepare: makes a method with some settings ready to decode with a number of threads, and
            returns a function that runs some steps and returns their mean seconds.
    """
    changed = []
    for method in methods:
        with suppress(Exception):  # a broken method: its samples report the error
            settings = known_acceptance(method)  # with rows and MAT; empty if unknown
            # Vanilla has no settings. A method has `settings` if a file already gave them.
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
    """Check if the user gave one of the options that would be chosen."""
    given = method.decided_by_user
    if tried:
        return any(given & acceptance.options.keys() for acceptance in tried)
    options = method.options
    smallest = options.sized(2)
    return any(getattr(smallest, name) != getattr(options, name) for name in given)


def _fastest_options(
    method: RunMethod, settings: Sequence[Acceptance], times: StepTimes, prepare: Prepare
) -> dict[str, Any]:
    """Find the options of a method's fastest settings, by seconds per token in short trials.

    The time of the target's part is a lower bound, so most settings need no trial. If several
    settings are equally fast, the paper's win, or else those with the fewest rows.

    Args:
        method: with the paper's options.
        settings: with their mean rows of a step and their MAT, the paper's first.
        times: seconds of the target's steps, by rows and threads.
        prepare: makes the method with some settings ready to decode with a number of threads, and
            returns a function that runs some steps and returns their mean seconds.
    """

    def least_cost_s(acceptance: Acceptance) -> float:
        """Compute the seconds per token that settings would take if drafting took no time."""
        return times.at(acceptance.rows) / acceptance.mat

    paper = settings[0]
    # Settings with fewer accepted tokens are not worth a trial.
    others = [acceptance for acceptance in settings[1:] if acceptance.mat >= LEAST_MAT]
    trials: list[Trial] = []  # settings that were tried once
    for acceptance in [paper, *sorted(others, key=least_cost_s)]:
        best_cost_s = min((trial.costs_s[0] for trial in trials), default=float("inf"))
        # LIKELY: the factor by which a single trial may be wrong
        if least_cost_s(acceptance) <= LIKELY * best_cost_s:
            tuned_method = method.tuned(acceptance.options, source="")  # only for this trial
            time_step = prepare(tuned_method, times.threads_at(acceptance.rows))
            trials.append(Trial(acceptance, time_step))
            trials[-1].run()  # appends seconds per token to `costs_s`
    best_cost_s = min(trial.costs_s[0] for trial in trials)
    likely_trials = [trial for trial in trials if trial.costs_s[0] <= LIKELY * best_cost_s]
    _try_again(likely_trials)  # all of them in turn, a few times
    # by trial: the cost of its setting / the usual cost in the same round
    ratios = _ratios_to_usual(likely_trials)
    least_ratio = min(ratios)
    equally_fast = [
        trial.acceptance
        for trial, ratio in zip(likely_trials, ratios, strict=True)
        if ratio <= EQUAL * least_ratio  # EQUAL: a smaller ratio counts as no difference
    ]
    if paper in equally_fast:
        return paper.options
    return min(equally_fast, key=lambda acceptance: acceptance.rows).options


def _try_again(trials: Sequence[Trial]) -> None:
    """Try several settings in up to `NUM_ROUNDS` more rounds. None begins after `ROUNDS_S` seconds.

    Each round appends a cost to every trial: the seconds per token of its setting. A single trial
    is not repeated, since there is nothing to compare.
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
    """Divide the cost of each setting by the median cost in the same round.

    The result has the median over rounds of each setting. Another program that slows down a whole
    round changes no ratio.
    """
    rounds = zip(*(trial.costs_s for trial in trials), strict=True)
    usual_s = [median(costs_s) for costs_s in rounds]
    return [median(map(truediv, trial.costs_s, usual_s)) for trial in trials]


def _cut_to_cheap_rows(method: RunMethod, drafter: Drafter, times: StepTimes) -> RunMethod | None:
    """Cut a method's draft to the rows that are cheap here; None if it needs no cut."""
    most_s = CUT_COST * times.at(1)
    cheap_rows = max(rows for rows in times.seconds if times.at(rows) <= most_s)
    options = method.options.sized(max(2, cheap_rows))
    if max(drafter.tree_sizes) <= cheap_rows or options == method.options:
        return None
    return method.tuned(options.as_dict(), "cut")


def acceptance_of(file: AcceptanceFile | None, method: RunMethod) -> Sequence[Acceptance]:
    """Return the known acceptance of a method; nothing if an option of the user changes it.

    SAM's option `other` is part of the name, since it names the method that drafts if SAM finds no
    copy.
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
