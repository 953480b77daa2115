"""`make` in a fresh clone: setup, and the message if it cannot set up."""

import re
import shutil
from pathlib import Path

import pytest

from tests.packaging.shell import ROOT, output

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


@pytest.mark.parametrize(
    ("given", "options"),
    [([], "--limit 4 --max-new-tokens 96"), (["ARGS=--limit 9 --quiet"], "--limit 9 --quiet")],
)
def test_make_real_is_short_unless_options_are_given(
    given: list[str], options: str, clone: Path
) -> None:
    steps = output(["make", "--no-print-directory", "--dry-run", "real", *given], clone)
    assert steps.splitlines()[-1].endswith(f"specbench run --model smollm2-135m {options}")


def test_make_without_target_lists_the_targets(clone: Path) -> None:
    listed = output(["make"], clone)
    assert all(f"make {target} " in listed for target in ("setup", "run", "test", "check"))


def test_the_gate_runs_every_target_that_tests() -> None:
    gate = (ROOT / ".ci" / "run").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^(test[\w-]*|check|coverage|faults|gate):", makefile, re.MULTILINE))
    left = {target for target in targets if not re.search(rf"\b{target}(?![\w-])", gate)}
    assert left == {"test-ray"}
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
