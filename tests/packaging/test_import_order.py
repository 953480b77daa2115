"""Imports load no slow libraries."""

import tomllib
from pathlib import Path

from tests.packaging.rooms import modules
from tests.packaging.shell import python
from tests.support.paths import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMPORT_RULES = SETTINGS["tool"]["ruff"]["lint"]["flake8-tidy-imports"]
HEAVY = set(IMPORT_RULES["banned-module-level-imports"])
"""Libraries that take long to import. Ruff finds module-level imports of them; these tests find
those that other imports load.
"""
LISTED = ("methods", "models", "datasets", "runs", "tunes")
COMMANDS = ("--help", "run --help", *(f"list {kind}" for kind in LISTED))


def test_commands_that_must_start_fast_import_nothing_heavy(tmp_path: Path) -> None:
    code = f"""
import sys
from specbench.cli import main
for command in {COMMANDS!r}:
    sys.argv = ["specbench", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
    print("heavy:", command, *({HEAVY!r} & set(sys.modules)))
"""
    said = python(code, tmp_path, path=[ROOT]).splitlines()
    heavy = [line for line in said if line.startswith("heavy:")]
    assert heavy == [f"heavy: {command}" for command in COMMANDS]


def test_analysis_and_vocabulary_do_not_import_torch(tmp_path: Path) -> None:
    rooms = ("specbench.errors", "specbench.types", "specbench.analysis")
    names = [name for name in modules() if name.startswith(rooms)]
    imports = "\n".join(f"import {name.removesuffix('.__init__')}" for name in names)
    code = f"{imports}\nimport sys\nprint({HEAVY!r} & set(sys.modules))"
    assert python(code, tmp_path, path=[ROOT]) == "set()"
