"""`make` in a fresh clone: the setup, and the commands of the targets."""

import shutil
from pathlib import Path

import pytest

from tests.packaging.shell import output
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def test_make_run_sets_up_with_the_tested_versions_first(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    steps = output(["make", "--dry-run", "run"], tmp_path)
    assert steps.index("-c constraints.txt") < steps.index(".venv/bin/specbench run")


def test_make_without_target_lists_the_targets() -> None:
    listed = output(["make"], ROOT)
    assert all(f"make {target} " in listed for target in ("setup", "run", "test", "check"))
