"""`make` in a fresh clone: setup, and the message if it cannot set up."""

import re
import shutil
from pathlib import Path

import pytest

from tests.packaging.shell import ROOT, output, run

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that setting up depends on, without an environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    return tmp_path


def test_make_run_sets_up_with_the_tested_versions_first(clone: Path) -> None:
    steps = output(["make", "--dry-run", "run"], clone)
    assert steps.index("-c constraints.txt") < steps.index(".venv/bin/specbench run")


def test_once_set_up_make_installs_nothing_again(clone: Path) -> None:
    stamp = clone / ".venv" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()
    assert "pip" not in output(["make", "--dry-run", "run"], clone)


def test_without_a_suitable_python_make_says_what_to_install(clone: Path) -> None:
    done = run(["make", "setup", "PYTHON=no-such-python"], clone)
    assert done.returncode != 0
    assert (
        "None of these is a Python 3.11 or newer with venv and pip: no-such-python." in done.stderr
    )
    assert "apt install python3 python3-venv" in done.stderr
    assert not (clone / ".venv").exists()


def test_make_without_target_lists_the_targets(clone: Path) -> None:
    listed = output(["make"], clone)
    assert all(f"make {target} " in listed for target in ("setup", "run", "test", "check"))


def test_the_gate_runs_every_target_that_tests() -> None:
    gate = (ROOT / ".ci" / "run").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^(test[\w-]*|check|coverage|faults|gate):", makefile, re.MULTILINE))
    assert {target for target in targets if not re.search(rf"\b{target}(?![\w-])", gate)} == {
        "test-engines",
        "test-ray",
    }
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
