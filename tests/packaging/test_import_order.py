"""Imports load neither folders of the checkout nor libraries that take long."""

import ast
import tomllib
from pathlib import Path

import pytest

from tests.packaging.rooms import imported, modules, read_sources
from tests.packaging.shell import ROOT, python

CHECKOUT_ONLY = {"benchmarks", "tests", "tools"}
"""Top-level folders that the wheel lacks."""

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMPORT_RULES = SETTINGS["tool"]["ruff"]["lint"]["flake8-tidy-imports"]
HEAVY = set(IMPORT_RULES["banned-module-level-imports"])
"""Libraries that take long to import. Ruff finds module-level imports of them; these tests
find the ones that come along with other imports.
"""


def test_the_package_imports_nothing_that_stays_in_the_checkout() -> None:
    found = [
        f"{module}: {name}"
        for module, source in read_sources().items()
        for name in imported(ast.parse(source), module)
        if name.removeprefix("specbench.").partition(".")[0] in CHECKOUT_ONLY
    ]
    assert found == []


@pytest.mark.parametrize(
    "command", ["--help", "run --help", "list methods", "list models", "list datasets", "list runs"]
)
def test_commands_that_must_start_fast_import_nothing_heavy(command: str, tmp_path: Path) -> None:
    code = f"""
import sys
from specbench.cli import main
sys.argv = ["specbench", *{command.split()!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("heavy:", *sorted({HEAVY!r} & set(sys.modules)))
"""
    assert python(code, tmp_path, path=[ROOT]).splitlines()[-1] == "heavy:"


def test_analysis_and_vocabulary_need_no_torch(tmp_path: Path) -> None:
    rooms = ("specbench.errors", "specbench.types", "specbench.analysis")
    names = [name for name in modules() if name.startswith(rooms)]
    imports = "\n".join(f"import {name.removesuffix('.__init__')}" for name in names)
    code = f"{imports}\nimport sys\nprint({HEAVY!r} & set(sys.modules))"
    assert python(code, tmp_path, path=[ROOT]) == "set()"
