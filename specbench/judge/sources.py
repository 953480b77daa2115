"""Checks of the source of a run's speed: is it drafting?"""

from __future__ import annotations

from collections.abc import Iterator

from specbench.analysis.cheats import FAST_STEP, SLOW_VANILLA, find_cheats
from specbench.analysis.records import make_table
from specbench.analysis.warnings import RunWarning
from specbench.judge.checks import Check
from specbench.log.run import Run
from specbench.report.texts import note

SOURCE = "source of speed"
STEPS = (FAST_STEP, SLOW_VANILLA)


def check_sources(run: Run, baseline: Run | None = None) -> Iterator[Check]:
    """A failed check for each kind of finding, or one that passed.

    Two findings have honest causes too. A step that is faster than vanilla's fails only if it
    is not so in the baseline run, and is skipped without one; untimed work is always skipped.
    """
    found = find_cheats(make_table(run.records), run.header)
    before = found
    if baseline:
        before = find_cheats(make_table(baseline.records), baseline.header)
    known = {method for one in before if one.key in STEPS for method in _methods(one)}
    for one in found:
        is_known = (one.key in STEPS and known >= _methods(one)) or one.key == "untimed_work"
        text = note(one.key, run.header, **one.numbers).text
        yield Check(SOURCE, "skipped" if is_known else "failed", text)
    if not found:
        yield Check(SOURCE, "passed", "")


def _methods(warning: RunWarning) -> set[str]:
    return {one["method"] for one in warning.numbers["methods"]}
