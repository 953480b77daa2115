"""Imports between files of the package, and the order of rooms that follows.

`python -m tests.packaging.rooms` prints the floor of each room.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import networkx as nx

from tests.support.paths import ROOT

HOUSE_FILE = ROOT / "tests/packaging/house.toml"
HOUSE = tomllib.loads(HOUSE_FILE.read_text(encoding="utf-8"))
FLOORS: Mapping[str, int] = HOUSE["floors"]


def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name. The name of a package ends in `__init__`."""
    places = [(ROOT / "specbench", "specbench."), (ROOT / "methods", "specbench.methods.")]
    return {
        prefix + ".".join(path.relative_to(folder).with_suffix("").parts): path
        for folder, prefix in places
        for path in sorted(folder.rglob("*.py"))
    }


def room(module: str) -> str:
    """The room of a module. `specbench.log.files` is in `log`, and `specbench.errors` is a room."""
    return module.split(".")[1]


def folder(module: str) -> str:
    """The folder of a module below `specbench`, or a module of the root itself."""
    parts = module.split(".")
    return parts[1] if len(parts) == 2 else "/".join(parts[1:-1])


def import_graph(sources: Mapping[str, str]) -> nx.DiGraph:
    """The imports of each file, as dotted names.

    They include imports for type hints, in functions, and by strings.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(sources)
    for name, source in sources.items():
        tree = ast.parse(source)
        for imported_name in (*imported(tree, name), *_named_by_strings(tree, name, sources)):
            target = _module_of(imported_name, sources)
            if target and target != name:
                graph.add_edge(name, target)
    return graph


def read_sources() -> dict[str, str]:
    return {name: path.read_text(encoding="utf-8") for name, path in modules().items()}


def imported(tree: ast.AST, module: str) -> Iterator[str]:
    """The absolute dotted names that a module imports, also in functions."""
    package = module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _named_by_strings(tree: ast.AST, module: str, modules: Iterable[str]) -> Iterator[str]:
    """Modules that a string names in full, or together with the beginning of an f-string."""
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    prefixes = [_prefix(node, module) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    for text in texts:
        if not text.replace(".", "").replace("_", "").isalnum() or text.endswith("."):
            continue
        # A text names a module only if the package at the f-string's beginning has that module.
        joined = [prefix + text for prefix in prefixes if prefix]
        named = [
            name for name in joined if not (_module_of(name, modules) or "").endswith(".__init__")
        ]
        for name in (text, *named):
            # The name of a package may also be that of a group of entry points.
            if f"{name}.__init__" not in modules and name.startswith("specbench."):
                yield name


def _prefix(text: ast.JoinedStr, module: str) -> str:
    """The beginning of f"specbench.room.{name}" or f"{__name__}.{name}", otherwise empty."""
    first, *rest = text.values
    if isinstance(first, ast.Constant) and str(first.value).startswith("specbench."):
        return str(first.value)
    if isinstance(first, ast.FormattedValue) and ast.unparse(first.value) == "__name__" and rest:
        return module.removesuffix(".__init__") + "."
    return ""


def _module_of(name: str, modules: Iterable[str]) -> str | None:
    """The file of an imported name: a module, its package, or the module that defines it."""
    while name:
        for candidate in (name, f"{name}.__init__"):
            if candidate in modules:
                return candidate
        name = name.rpartition(".")[0]
    return None


def upward(graph: nx.DiGraph) -> set[str]:
    """Imports of a room that is on the same floor or above."""
    return {
        f"up {module} -> {target}"
        for module, target in graph.edges
        if room(module) != room(target) and FLOORS[room(module)] <= FLOORS[room(target)]
    }


def in_circles(graph: nx.DiGraph) -> set[str]:
    """Files that import themselves through others."""
    circles = nx.strongly_connected_components(graph)
    return {f"circle {name}" for circle in circles if len(circle) > 1 for name in circle}


def heights(graph: nx.DiGraph) -> dict[str, int]:
    """The floor of each folder: one above the highest that it imports.

    Folders that import each other in a circle share a floor.
    """
    folder_graph = nx.DiGraph()
    folder_graph.add_nodes_from(map(folder, graph))
    edges = ((folder(module), folder(target)) for module, target in graph.edges)
    folder_graph.add_edges_from(
        (importer, target) for importer, target in edges if importer != target
    )
    # In `circles`, each circle of folders is one node, and so is each folder outside of circles.
    circles = nx.condensation(folder_graph)
    floors = enumerate(nx.topological_generations(circles.reverse()), 1)
    folders_of = circles.nodes(data="members")
    return {name: floor for floor, nodes in floors for node in nodes for name in folders_of[node]}


if __name__ == "__main__":
    floors = heights(import_graph(read_sources()))
    print(*sorted(f"floor {floor}  {name}" for name, floor in floors.items()), sep="\n")
