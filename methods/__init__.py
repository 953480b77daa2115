"""The methods: one module each, imported as `specbench.methods`.

A method's module holds `METHOD` (a `specbench.engine.drafter.Method`), the frozen dataclass of
its options and its drafter. From the rest of the package it imports only `specbench.errors`,
`specbench.types` and `specbench.engine`. Modules with a leading `_` are shared by methods; those
in `shared/` are also used by other packages.
"""

import ast
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specbench.errors import reason_of


@dataclass(frozen=True, slots=True)
class About:
    """A module's description of its method: fields of `Method`, read without importing torch.

    `summary` is the first line of the docstring. `error` is the reason that reading failed, or "".
    """

    summary: str = ""
    weights: str | None = None
    head: str = ""
    paper_order: int | None = None
    is_default: bool = True
    colour: str = ""
    slow_on_cpu: str = ""
    error: str = ""


@cache
def described() -> Mapping[str, About]:
    """Descriptions of the methods in this folder, by name.

    Methods with a `paper_order` come first, in this order. The others follow alphabetically.
    """
    abouts = {
        module.name: _about(Path(folder, f"{module.name}.py"))
        for folder in __path__
        for module in pkgutil.iter_modules([folder])
        if not module.ispkg and not module.name.startswith("_")
    }
    after_papers = len(abouts)

    def order(name: str) -> tuple[int, str]:
        paper_order = abouts[name].paper_order
        return (after_papers if paper_order is None else paper_order, name)

    return MappingProxyType({name: abouts[name] for name in sorted(abouts, key=order)})


def _about(path: Path) -> About:
    """Describe the method in a file by the constants that it gives to `Method`."""
    try:
        tree = ast.parse(path.read_text("utf-8"))
        summary = (ast.get_docstring(tree) or "").split("\n")[0]
        keywords = [
            keyword
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "METHOD"
            for keyword in getattr(node.value, "keywords", ())
        ]
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        return About(error=f"{path} cannot be read: {reason_of(error)}")
    field_names = {field.name for field in fields(About)} - {"summary", "error"}
    constants: dict[str, Any] = {
        str(keyword.arg): keyword.value.value
        for keyword in keywords
        if keyword.arg in field_names and isinstance(keyword.value, ast.Constant)
    }
    return About(summary, **constants)
