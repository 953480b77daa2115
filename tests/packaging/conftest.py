"""A clean copy of the checkout, and the packages built from it, once for all packaging tests."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.packaging.shell import output, pip_install
from tests.support.paths import ROOT

FOLDERS = ("specbench", "methods", "datasets", "results/published")


@pytest.fixture(scope="session")
def source_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packaged folders and of `tools`, so that builds do not change the checkout."""
    copy = tmp_path_factory.mktemp("source") / "checkout"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy)
    for name in (*FOLDERS, "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="session")
def wheel(source_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the source distribution, as in a release."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    output([*build, str(source_copy)], source_copy)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("installed")
    pip_install("--target", folder, wheel, cwd=folder)
    return folder
