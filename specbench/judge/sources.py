"""The gate's check of where a run's speed comes from: by drafting, not by a hidden way."""

from collections.abc import Iterator

from specbench.analysis.cheats import FAST_STEP, SLOW_VANILLA, find_cheats
from specbench.analysis.tables import RunTables
from specbench.analysis.warnings import RunWarning
from specbench.judge.checks import Check
from specbench.report.texts import make_note

SOURCE = "source of speed"
UNTIMED = "untimed_work"
"""The key of the warning about work of a method that no clock of its answers saw."""
STEPS = (FAST_STEP, SLOW_VANILLA)
"""Keys of the warnings about steps that are faster than vanilla's."""


def check_sources(run: RunTables, baseline: RunTables) -> Iterator[Check]:
    """A check for each warning that speed may not come from drafting; one that passed if none.

    Warnings fail, but two have honest causes too and are then skipped: a step that is faster
    than vanilla's, if it is so in the baseline run as well, and untimed work always.

    A warning has the `key` of its rule, and the `numbers` of the methods that it names. Two keys,
    STEPS, are about fast steps: of one method, or of several. UNTIMED is about untimed work.
    """
    warnings = _find_cheats(run)
    fast_methods_before = {  # methods with fast steps in the baseline run
        method
        for warning in _find_cheats(baseline)
        if warning.key in STEPS
        for method in _methods(warning)
    }
    for warning in warnings:
        may_be_honest = warning.key == UNTIMED
        if warning.key in STEPS:  # all its methods were fast before
            may_be_honest = _methods(warning) <= fast_methods_before
        # the warning as a sentence
        text = make_note(warning.key, run.run.header, **warning.numbers).text
        yield Check(SOURCE, "skipped" if may_be_honest else "failed", text)
    if not warnings:
        yield Check(SOURCE, "passed", "")


def _find_cheats(tables: RunTables) -> tuple[RunWarning, ...]:
    """The findings in a run. The rules are for the engine in this process, not for servers."""
    header = tables.run.header
    if header.servers:
        return ()
    return find_cheats(tables.whole.table, header)


def _methods(warning: RunWarning) -> set[str]:
    return {entry["method"] for entry in warning.numbers["methods"]}
