"""The gate's check that a run's speed comes from drafting, and not from a hidden trick."""

from collections.abc import Callable, Iterator, Sequence

from specbench.analysis.baseline_drafts import find_baseline_drafts
from specbench.analysis.cheats import FAST_STEP, SLOW_VANILLA, find_cheats
from specbench.analysis.records import RecordTable
from specbench.analysis.tables import RunTables, TabledRun
from specbench.analysis.warnings import RunWarning
from specbench.judge.checks import Check
from specbench.log.header import RunHeader
from specbench.report.texts import make_note

SOURCE = "source of speed"
UNTIMED = "untimed_work"
"""The key of the warning about a method's work outside the times of its answers."""
STEPS = (FAST_STEP, SLOW_VANILLA)
"""Keys of the warnings about steps that are faster than vanilla's."""


def check_sources(run: RunTables, baseline: RunTables) -> Iterator[Check]:
    """A check for each warning that speed may not come from drafting; without warnings, a passed
    check.

    The check of a warning fails. It is skipped for two warnings that may have honest causes: steps
    faster than vanilla's, if the baseline run has them too; and untimed work, if no method's
    speedup falls below 1 when this work is counted.

    A warning has the `key` of its rule and, if the rule is about methods, the `numbers` of each.
    Two keys, STEPS, are about fast steps: of one method, or of several. UNTIMED is about untimed
    work.
    """
    warnings = _find_cheats(run)
    fast_methods_before = {  # methods with fast steps in the baseline run
        method
        for warning in _find_cheats(baseline)
        if warning.key in STEPS
        for method in _methods(warning)
    }

    def may_be_honest(warning: RunWarning) -> bool:
        """True for a warning that is skipped: one of the two with an honest cause."""
        if warning.key in STEPS:  # all its methods were fast before
            return _methods(warning) <= fast_methods_before
        return _is_honest_work(warning)

    yield from _checks(run.run.header, warnings, may_be_honest)


def check_sources_alone(run: TabledRun) -> Iterator[Check]:
    """The checks of `check_sources` for a run without a baseline.

    Skipped are untimed work that takes no method below a speedup of 1, and the warning about
    several methods with steps faster than vanilla's: vanilla itself may be slow.
    """
    header = run.run.header
    warnings = _find_in_table(header, run.table)
    return _checks(
        header,
        warnings,
        lambda warning: warning.key == SLOW_VANILLA or _is_honest_work(warning),
    )


def _is_honest_work(warning: RunWarning) -> bool:
    """True for untimed work that takes no method from a speedup of at least 1 to below 1.

    A warning has the numbers of each method that it names: `timed` is the speedup as it was
    measured, and `counted` the speedup with the untimed work; both are absent if it is unknown.
    """
    return warning.key == UNTIMED and not any(
        numbers.get("counted", 1.0) < 1.0 <= numbers.get("timed", 0.0)
        for numbers in warning.numbers["methods"]
    )


def _checks(
    header: RunHeader,
    warnings: Sequence[RunWarning],
    may_be_honest: Callable[[RunWarning], bool],
) -> Iterator[Check]:
    """A check for each warning, skipped if it may be honest; without warnings, a passed check."""
    for warning in warnings:
        sentence = make_note(warning.key, header, **warning.numbers).text
        yield Check(SOURCE, "skipped" if may_be_honest(warning) else "failed", sentence)
    if not warnings:
        yield Check(SOURCE, "passed", "")


def _find_cheats(tables: RunTables) -> tuple[RunWarning, ...]:
    """The warnings about a run, from all its records."""
    return _find_in_table(tables.run.header, tables.whole.table)


def _find_in_table(header: RunHeader, table: RecordTable) -> tuple[RunWarning, ...]:
    """The warnings about a table of records. Most rules are for the engine in this process: runs on
    servers are only checked for a baseline that drafts, runs of other tools for nothing.
    """
    if header.imported:
        return ()
    if header.servers:
        return tuple(find_baseline_drafts(header, table.records))
    return find_cheats(table, header)


def _methods(warning: RunWarning) -> set[str]:
    """The methods that a warning names."""
    return {numbers["method"] for numbers in warning.numbers["methods"]}
