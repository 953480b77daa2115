"""The import order: each room imports only rooms before it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.shell import ROOT, python

ROOMS = (
    "errors", "outside", "garbage", "types", "toml_files", "choices", "log", "engine", "methods",
    "registry", "data", "models", "machine", "zoo", "training", "analysis", "run", "report",
    "compare", "check", "audit", "verify", "site", "contract", "api", "cli",
)  # fmt: skip
"""In order. `methods` sees the engine only: all a method may know is in the contract."""

CHECKOUT_ONLY = {"benchmarks", "tests", "tools"}
"""Top-level folders that the wheel lacks."""

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMPORT_RULES = SETTINGS["tool"]["ruff"]["lint"]["flake8-tidy-imports"]
HEAVY = set(IMPORT_RULES["banned-module-level-imports"])
"""Libraries that take long to import. Ruff finds module-level imports of them; these tests find the
ones that come along with other imports.
"""


def modules() -> dict[str, Path]:
    """Every module of the package and of `methods/`, by its dotted name below `specbench`."""
    places = [(ROOT / "specbench", ""), (ROOT / "methods", "methods.")]
    return {
        prefix + ".".join(path.relative_to(folder).with_suffix("").parts): path
        for folder, prefix in places
        for path in sorted(folder.rglob("*.py"))
    }


def imported_rooms(source: str, room: str) -> Iterator[tuple[int, str]]:
    """Line and room of every import of the package, anywhere in the file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            names = [f"specbench.{room}"]  # a relative import stays in its folder
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "specbench" and (found := rest.partition(".")[0]) in ROOMS:
                yield node.lineno, found


def violations(source: str, room: str) -> list[str]:
    """A message for every import of a later room."""
    seen = ROOMS[: ROOMS.index(room) + 1]
    found = imported_rooms(source, room)
    return [f"line {line}: {room} imports {other}" for line, other in found if other not in seen]


def test_every_room_imports_only_rooms_before_it() -> None:
    found = [
        f"{path.relative_to(ROOT)}, {violation}"
        for name, path in modules().items()
        if (room := name.partition(".")[0]) in ROOMS
        for violation in violations(path.read_text(encoding="utf-8"), room)
    ]
    assert found == []


def top_level_imports(source: str) -> Iterator[tuple[int, str]]:
    """Line and first name of every absolute import; `specbench.tools` counts as `tools`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (
            (node.lineno, name.removeprefix("specbench.").partition(".")[0]) for name in names
        )


def test_the_package_imports_nothing_that_stays_in_the_checkout() -> None:
    found = [
        f"{path.relative_to(ROOT)}, line {line}: {name}"
        for path in modules().values()
        for line, name in top_level_imports(path.read_text(encoding="utf-8"))
        if name in CHECKOUT_ONLY
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    ["import tools.zoo", "from tools.zoo import text", "from specbench import tools"],
)
def test_an_import_from_the_checkout_is_seen(source: str) -> None:
    assert [name for _, name in top_level_imports(source)] == ["tools"]


def test_every_module_is_in_a_room() -> None:
    rooms = {name.partition(".")[0] for name in modules()}
    assert rooms - {"__init__", "__main__"} == set(ROOMS)


@pytest.mark.parametrize(
    "source",
    [
        "from specbench.data import tasks",
        "import specbench.data.tasks",
        "from specbench import registry",
        "def f():\n    from specbench.cli import main",
    ],
)
def test_an_import_of_a_later_room_is_seen(source: str) -> None:
    assert len(violations(source, "methods")) == 1


def test_a_drafter_may_import_the_engine_and_its_neighbours() -> None:
    source = "from specbench.engine.drafter import Drafter\nfrom specbench.methods import _eagle"
    assert violations(source, "methods") == []


@pytest.mark.parametrize(
    "command",
    ["--help", "run --help", "list methods", "list models", "list datasets", "list runs"],
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
    rooms = ("errors", "types", "analysis")
    names = [n for n in modules() if n.startswith(rooms)]
    imports = "\n".join(f"import specbench.{name.removesuffix('.__init__')}" for name in names)
    code = f"{imports}\nimport sys\nprint({HEAVY!r} & set(sys.modules))"
    assert python(code, tmp_path, path=[ROOT]) == "set()"
