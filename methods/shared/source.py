"""Options of a method, read from its file: importing it would import torch."""

import ast
import importlib
from pathlib import Path
from typing import Any

_PACKAGE = "specbench.methods"


def read_options(method: str) -> Any:
    """The dataclass of options of a built-in method, with fields only.

    None if its file cannot be read: importing it will say why.
    """
    try:
        bindings = _bindings(method)
        keywords = {keyword.arg: keyword.value for keyword in bindings["METHOD"].value.keywords}
        return _evaluate(keywords["options"].id, bindings)
    except Exception:  # whatever a file that is being written may raise
        return None


def _bindings(module: str) -> dict[str, Any]:
    """The statements of a module of the methods by the name that they bind.

    An imported name has a pair instead: its module, and its name there.
    """
    path = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    bindings: dict[str, Any] = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bindings[alias.asname or alias.name] = (node.module, alias.name)
        elif isinstance(node, ast.Assign):
            bindings[ast.unparse(node.targets[0])] = node
        elif isinstance(node, ast.AnnAssign):
            bindings[ast.unparse(node.target)] = node
        elif isinstance(node, ast.ClassDef):
            node.body = [child for child in node.body if not isinstance(child, ast.FunctionDef)]
            bindings[node.name] = node
    return bindings


def _evaluate(name: str, bindings: dict[str, Any]) -> Any:
    """What a name stands for: its declaration is run alone, after those that it uses."""
    node = bindings[name]
    if isinstance(node, tuple):
        module, original_name = node
        if module.startswith(f"{_PACKAGE}."):
            module_name = module.removeprefix(f"{_PACKAGE}.")
            return _evaluate(original_name, _bindings(module_name))
        return getattr(importlib.import_module(module), original_name)
    names = [child for child in ast.walk(node) if isinstance(child, ast.Name)]
    used = {child.id for child in names if isinstance(child.ctx, ast.Load)}
    namespace: dict[str, Any] = {"__name__": _PACKAGE}
    for used_name in used & bindings.keys():
        namespace[used_name] = _evaluate(used_name, bindings)
    code = compile(ast.Module([node], []), name, "exec", dont_inherit=True)
    exec(code, namespace)
    return namespace[name]
