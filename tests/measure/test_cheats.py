"""A plain run and its report name methods that gain speed other than by drafting."""

from pathlib import Path

import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.judge.allowed import Allowed
from specbench.judge.gate import check
from specbench.log.run import Run
from specbench.report.warning_notes import warnings
from tests.support.cheats import cheating_run

NAMED = {
    "honest": ("", ""),
    "remembers": ("remembered_answers", "source of speed"),
    "peeks": ("known_answers", "source of speed"),
    "stops the clock": ("hidden_time", "source of speed"),
    "accepts the two best": ("different_output", "output"),
    "changes the weights": ("changed_weights", "source of speed"),
    "decodes in build": ("untimed_work", ""),
    "works in the warm-up": ("untimed_work", ""),
    "keeps files": ("remembered_answers", "source of speed"),
    "remembers seldom": ("remembered_answers", "source of speed"),
    "slows both clocks": ("fast_step", "source of speed"),
    "slows vanilla by 30 %": ("slow_steps", "source of speed"),
}
"""The warning about each cheat, and the check that fails against an honest run.

`benchmarks/cheat_power.py` also runs the cheats that a report does not find, according to
SECURITY.md.
"""
REMEMBERING = ("remembers", "keeps files", "remembers seldom")
"""Cheats that a second pass reveals."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return cheating_run("honest", tmp_path_factory.mktemp("honest") / "run", repeats=2)


@pytest.mark.parametrize("name", NAMED)
def test_a_cheat_is_named_and_fails_the_check(name: str, tmp_path: Path, honest: Run) -> None:
    warning, failed = NAMED[name]
    run = cheating_run(name, tmp_path / "run", repeats=2 if name in REMEMBERING else 1)
    assert all(record.is_ok for record in run.records)
    keys = {warning.key for warning in warnings(measure(run, Bootstrap(10)))}
    # Steps also look fast if vanilla is slowed, or if the clock is stopped.
    others = {"fast_step"} if name in ("slows vanilla by 30 %", "stops the clock") else set()
    assert (keys & {key for key, _ in NAMED.values()}) - others == {warning} - {""}
    gate = check(run, honest, Allowed(speed="never"))
    failures = {check.name for check in gate.failures} & {"source of speed", "output"}
    assert failures >= {failed} - {""}
