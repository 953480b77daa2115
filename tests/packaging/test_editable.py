"""Editable installs: a file added to the checkout is available at once."""

import site
import sys
from pathlib import Path

import pytest

from tests.packaging.shell import output, pip_install, where

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(source_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a fresh environment, specbench installed as editable.

    It sees this environment's libraries as plain folders: their `.pth` files are not read, and
    so an editable specbench of this environment is not found through them.
    """
    folder = tmp_path_factory.mktemp("editable")
    output([sys.executable, "-m", "venv", "--without-pip", folder], folder)
    (libraries,) = folder.glob("lib/python*/site-packages")
    (libraries / "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    scripts = folder / "bin"
    options = ("--ignore-installed", "--editable", source_copy)
    pip_install(*options, cwd=folder, into=("--python", scripts / "python"))
    return scripts


@pytest.mark.parametrize("has_clone", [False, True])
def test_an_editable_install_runs_from_anywhere_also_beside_the_clone(
    environment: Path, source_copy: Path, tmp_path: Path, has_clone: bool
) -> None:
    if has_clone:
        (tmp_path / "specbench").symlink_to(source_copy)  # as `git clone` names it
    package, method = where(tmp_path, python=environment / "python")
    assert package == source_copy / "specbench" / "__init__.py"
    assert method == source_copy / "methods" / "pld.py"
    assert "gsm8k" in output([environment / "specbench", "list", "datasets"], tmp_path)
