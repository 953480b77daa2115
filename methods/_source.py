"""Options of a method, read from its file: importing it would import torch."""

import ast
import importlib
from pathlib import Path
from typing import Any

_PACKAGE = "specbench.methods"


def read_options(method: str) -> Any:
    """The dataclass of options of a method of this folder, with fields only.

    None if its file cannot be read: importing it will say why.
    """
    try:
        names = _bindings(method)
        (given,) = (one.value for one in names["METHOD"].value.keywords if one.arg == "options")
        return _made(given.id, names)
    except Exception:  # whatever a file that is being written may raise
        return None


def _bindings(module: str) -> dict[str, Any]:
    """The statements of a module of this folder by the name that they bind."""
    path = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: (node.module, one.name) for one in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[ast.unparse(target)] = node
        elif isinstance(node, ast.ClassDef):
            node.body = [one for one in node.body if not isinstance(one, ast.FunctionDef)]
            found[node.name] = node
    return found


def _made(name: str, names: dict[str, Any]) -> Any:
    """The value of a name: a declaration is run alone, after those that it uses."""
    node = names[name]
    if isinstance(node, tuple):
        module, original = node
        if module.startswith(f"{_PACKAGE}."):
            return _made(original, _bindings(module.removeprefix(f"{_PACKAGE}.")))
        return getattr(importlib.import_module(module), original)
    loads = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    used = {one.id for one in loads if isinstance(one.ctx, ast.Load)}
    space = {one: _made(one, names) for one in used if one in names} | {"__name__": _PACKAGE}
    exec(compile(ast.Module([node], []), name, "exec", dont_inherit=True), space)
    return space[name]
