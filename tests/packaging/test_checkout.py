"""A checkout works without installation, and shadows no other package."""

import sys
from pathlib import Path

import pytest

from tests.packaging.shell import ROOT, output, python, where


@pytest.mark.parametrize("place", ["root", "elsewhere"])
def test_a_checkout_runs_without_being_installed(place: str, tmp_path: Path) -> None:
    cwd, path = (ROOT, []) if place == "root" else (tmp_path, [ROOT])
    assert where(cwd, path=path) == (ROOT / "specbench" / "__init__.py", ROOT / "methods/pld.py")
    found = output([sys.executable, "-m", "specbench", "list", "datasets"], cwd, path=path)
    assert "gsm8k" in found


def test_our_folder_never_hides_the_datasets_library() -> None:
    """Neither the root as the working folder, nor the root on the path."""
    code = "from importlib.util import find_spec; print(find_spec('datasets').origin)"
    found = Path(python(code, ROOT, path=[ROOT]))
    assert found.name == "__init__.py"
    assert found.parent != ROOT / "datasets"


@pytest.mark.slow
def test_a_run_without_downloads_needs_none_of_the_libraries_that_download(tmp_path: Path) -> None:
    code = f"""
import sys
for name in ("datasets", "pooch", "pynvml"):
    sys.modules[name] = None
sys.argv = ["specbench", "run", "--method", "pld", "--dataset", "gsm8k", "--limit", "1",
            "--max-new-tokens", "3", "--device", "cpu", "--offline", "--output", {str(tmp_path)!r}]
from specbench.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
    assert "PLD" in python(code, ROOT)
    assert (tmp_path / "samples.jsonl").exists() and (tmp_path / "report" / "table.md").exists()
