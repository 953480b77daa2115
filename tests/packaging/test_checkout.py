"""A plain checkout works without being installed, and hides nothing from other packages."""

import sys
from pathlib import Path

import pytest

from tests.packaging.shell import ROOT, output, python, where

LIST = [sys.executable, "-m", "specbench", "list"]


@pytest.mark.parametrize("place", ["root", "elsewhere"])
def test_a_checkout_runs_without_being_installed(place: str, tmp_path: Path) -> None:
    cwd, path = (ROOT, []) if place == "root" else (tmp_path, [ROOT])
    assert "pld" in output([*LIST, "methods"], cwd, path=path)
    assert "gsm8k" in output([*LIST, "datasets"], cwd, path=path)


def test_a_checkout_beats_an_installed_specbench(tmp_path: Path) -> None:
    package, method = where(tmp_path, path=[ROOT])
    assert package == ROOT / "specbench" / "__init__.py"
    assert method == ROOT / "methods" / "pld.py"


@pytest.mark.parametrize("path", [[], [ROOT]], ids=["run from the root", "root on the path"])
def test_our_folder_never_hides_the_datasets_library(path: list[Path]) -> None:
    code = "from importlib.util import find_spec; print(find_spec('datasets').origin)"
    found = Path(python(code, ROOT, path=path))
    assert found.name == "__init__.py"
    assert found.parent != ROOT / "datasets"


def test_without_the_datasets_library_the_folder_is_not_taken_for_it() -> None:
    code = """
import sys
sys.path = [p for p in sys.path if "site-packages" not in p]
sys.modules["numpy"] = None
from specbench.bench.hub_prompts import import_datasets
try:
    import_datasets()
except Exception as error:
    print(error.message, error.hint)
"""
    told = python(code, ROOT)
    assert "needs the Hugging Face datasets library" in told
    assert "pip install datasets" in told
