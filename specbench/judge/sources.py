"""Check that a run's speed comes from drafting, and not from a hidden trick."""

from collections.abc import Callable, Iterator

from specbench.analysis.baseline_drafts import find_baseline_drafts
from specbench.analysis.cheats import FAST_STEP, SLOW_VANILLA, find_cheats
from specbench.analysis.tables import RunTables, TabledRun
from specbench.analysis.warnings import RunWarning
from specbench.judge.checks import Check
from specbench.report.texts import make_note

SOURCE = "source of speed"
UNTIMED = "untimed_work"
"""The key of the warning about a method's work outside the times of its answers."""
STEPS = (FAST_STEP, SLOW_VANILLA)
"""The keys of the warnings about faster steps than vanilla's, in one or in several methods."""


def check_sources(run: RunTables, baseline: RunTables) -> Iterator[Check]:
    """A failed check for each warning that speed may not come from drafting, or a passed check if
    there are no warnings.

    Checks are skipped instead for two warnings that may have honest causes. One is about steps that
    are faster than vanilla's, if the baseline run has them too. The other is about untimed work, if
    no method's speedup falls below 1 when this work is counted.
    """
    fast_methods_before = {  # methods with fast steps in the baseline run
        method
        for warning in _find_cheats(baseline.whole)
        if warning.key in STEPS
        for method in _methods(warning)
    }

    def may_be_honest(warning: RunWarning) -> bool:
        """True for a warning that may have an honest cause."""
        if warning.key in STEPS:  # all methods that it names were fast before
            return _methods(warning) <= fast_methods_before
        return _is_honest_work(warning)

    yield from _checks(run.whole, may_be_honest)


def check_sources_alone(run: TabledRun) -> Iterator[Check]:
    """The checks of `check_sources` for a run without a baseline.

    Untimed work that takes no method below a speedup of 1 is skipped. So are steps of several
    methods that are faster than vanilla's, since vanilla itself may be slow.
    """
    return _checks(run, lambda warning: warning.key == SLOW_VANILLA or _is_honest_work(warning))


def _is_honest_work(warning: RunWarning) -> bool:
    """True for untimed work that takes no method from a speedup of at least 1 to below 1.

    A warning has the numbers of each method that it names. `timed` is the measured speedup, and
    `counted` the speedup with the untimed work. Both are absent if the speedup is unknown.
    """
    return warning.key == UNTIMED and not any(
        numbers.get("counted", 1.0) < 1.0 <= numbers.get("timed", 0.0)
        for numbers in warning.numbers["methods"]
    )


def _checks(run: TabledRun, may_be_honest: Callable[[RunWarning], bool]) -> Iterator[Check]:
    """A check for each warning about a run, or a passed check if there are no warnings.

    Checks of warnings that may be honest are skipped, and the others fail.
    """
    warnings = _find_cheats(run)
    for warning in warnings:
        sentence = make_note(warning.key, run.run.header, **warning.numbers).text
        yield Check(SOURCE, "skipped" if may_be_honest(warning) else "failed", sentence)
    if not warnings:
        yield Check(SOURCE, "passed", "")


def _find_cheats(run: TabledRun) -> tuple[RunWarning, ...]:
    """The warnings about a run.

    Most rules are for the engine in this process. Runs on servers are only checked for a baseline
    that drafts, and runs of other tools are not checked.
    """
    header = run.run.header
    if header.imported:
        return ()
    if header.servers:
        return tuple(find_baseline_drafts(header, run.table.records))
    return find_cheats(run.table, header)


def _methods(warning: RunWarning) -> set[str]:
    """The methods that a warning names."""
    return {numbers["method"] for numbers in warning.numbers["methods"]}
