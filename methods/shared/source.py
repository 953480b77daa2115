"""Read a method's options from its source file, because importing it would import torch."""

import ast
import importlib
from pathlib import Path
from typing import Any

_PACKAGE = "specbench.methods"


def read_options(method: str) -> Any:
    """The dataclass of options of a built-in method, without the methods of the class.

    None if the file cannot be read. The error will appear when the module is imported.
    """
    try:
        bindings = _bindings(method)
        keywords = {keyword.arg: keyword.value for keyword in bindings["METHOD"].value.keywords}
        return _value_of(keywords["options"].id, bindings)
    except Exception:  # a half-written file may raise anything
        return None


def _bindings(module: str) -> dict[str, Any]:
    """The top-level statements of a module in this package, by the name that each one binds.

    An imported name has a pair instead of a statement: the module, and the name in that module.
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


def _value_of(name: str, bindings: dict[str, Any]) -> Any:
    """The value of a name. Its statement is run after the statements of the names that it uses."""
    node = bindings[name]
    if isinstance(node, tuple):
        module, original_name = node
        if module.startswith(f"{_PACKAGE}."):
            module_name = module.removeprefix(f"{_PACKAGE}.")
            return _value_of(original_name, _bindings(module_name))
        return getattr(importlib.import_module(module), original_name)
    names = [child for child in ast.walk(node) if isinstance(child, ast.Name)]
    used = {child.id for child in names if isinstance(child.ctx, ast.Load)}
    namespace: dict[str, Any] = {"__name__": _PACKAGE}
    for used_name in used & bindings.keys():
        namespace[used_name] = _value_of(used_name, bindings)
    code = compile(ast.Module([node], []), name, "exec", dont_inherit=True)
    exec(code, namespace)
    return namespace[name]
