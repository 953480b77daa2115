"""A checkout works without installation, and shadows no other package.

In an editable install, a file that is added to the checkout is available at once.
"""

import site
import sys
from pathlib import Path

import pytest

from tests.packaging.shell import output, pip_install, python, where
from tests.support.paths import ROOT


@pytest.mark.parametrize("place", ["root", "elsewhere"])
def test_a_checkout_runs_without_being_installed(place: str, tmp_path: Path) -> None:
    cwd, path = (ROOT, []) if place == "root" else (tmp_path, [ROOT])
    assert where(cwd, path=path) == (ROOT / "specbench" / "__init__.py", ROOT / "methods/pld.py")
    listing = output([sys.executable, "-m", "specbench", "list", "datasets"], cwd, path=path)
    assert "gsm8k" in listing


def test_our_folder_never_hides_the_datasets_library() -> None:
    """The library is found with the root as the working folder, and with the root on the path."""
    code = "from importlib.util import find_spec; print(find_spec('datasets').origin)"
    library = Path(python(code, ROOT, path=[ROOT]))
    assert library.name == "__init__.py"
    assert library.parent != ROOT / "datasets"


@pytest.mark.slow
def test_a_run_without_downloads_needs_no_download_libraries(tmp_path: Path) -> None:
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


@pytest.fixture(scope="module")
def environment(source_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a fresh environment with an editable install of specbench.

    It sees this environment's libraries as plain folders. Their `.pth` files are not read, so an
    editable specbench of this environment is not found through them.
    """
    folder = tmp_path_factory.mktemp("editable")
    output([sys.executable, "-m", "venv", "--without-pip", folder], folder)
    (libraries,) = folder.glob("lib/python*/site-packages")
    (libraries / "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    scripts = folder / "bin"
    options = ("--ignore-installed", "--editable", source_copy)
    pip_install(*options, cwd=folder, into=("--python", scripts / "python"))
    return scripts


@pytest.mark.slow
@pytest.mark.parametrize("has_clone", [False, True])
def test_an_editable_install_runs_from_anywhere(
    environment: Path, source_copy: Path, tmp_path: Path, has_clone: bool
) -> None:
    if has_clone:
        (tmp_path / "specbench").symlink_to(source_copy)  # as `git clone` names it
    package, method = where(tmp_path, python=environment / "python")
    assert package == source_copy / "specbench" / "__init__.py"
    assert method == source_copy / "methods" / "pld.py"
    assert "gsm8k" in output([environment / "specbench", "list", "datasets"], tmp_path)
