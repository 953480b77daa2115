"""Names to methods, lazily: no method is imported before it is asked for.

Built-in methods are the modules of `methods/`. Others come from installed packages, through the
entry-point group `specbench.methods`, each entry naming a `Method`.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import specbench.methods
from specbench.errors import UserError, unknown_name

if TYPE_CHECKING:
    from specbench.engine.drafter import Method

GROUP = "specbench.methods"

PAPER_ORDER = (
    "vanilla", "sps", "pld", "lookahead", "medusa", "hydra", "eagle", "eagle2", "eagle3",
)  # fmt: skip
"""The order in which papers list the methods; others follow by name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered method as `specbench list methods` shows it; `error` says why it is broken."""

    name: str
    summary: str
    origin: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class MethodChoice:
    """A method with options as the user gave them: `pld:ngram=2`."""

    name: str
    given: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.given.items())
        return f"{self.name}:{options}" if options else self.name


def names() -> list[str]:
    """Every registered name, built-ins first."""
    return [*_builtins(), *(p.name for p in _plugins())]


def entries() -> list[Entry]:
    """Every registered method. Built-ins are not imported; plug-ins are, to tell broken ones."""
    listing = [
        Entry(name, _docstring_line(path), "specbench") for name, path in _builtins().items()
    ]
    for plugin in _plugins():
        origin = plugin.dist.name if plugin.dist else plugin.value
        try:
            listing.append(Entry(plugin.name, get(plugin.name).summary, origin))
        except UserError as error:
            listing.append(Entry(plugin.name, "", origin, error.message))
    return listing


def get(name: str) -> Method:
    """The method of that name.

    Raises:
        UserError: there is none, two packages claim the name, or its plug-in fails to import.
    """
    from specbench.engine.drafter import Method

    plugins = [p for p in _plugins() if p.name == name]
    if len(plugins) + (name in _builtins()) > 1:
        claims = ", ".join(p.value for p in plugins)
        raise UserError(
            f"Method {name!r} is registered more than once ({claims}).",
            "Uninstall one of the packages, or rename its entry point.",
        )
    if name in _builtins():
        return typing.cast(Method, importlib.import_module(f"{GROUP}.{name}").METHOD)
    if not plugins:
        raise unknown_name("method", name, names())
    try:
        method = plugins[0].load()
    except Exception as error:  # a plug-in may fail in any way; the cause is what counts
        raise UserError(
            f"Method {name!r} is broken: importing {plugins[0].value} failed with "
            f"{type(error).__name__}: {error}",
            "Fix or uninstall the package that brings it.",
        ) from error
    if not isinstance(method, Method):
        raise UserError(
            f"Method {name!r} is broken: {plugins[0].value} is a {type(method).__name__}, not a "
            "specbench Method.",
            "Let its entry point name a specbench.engine.drafter.Method.",
        )
    return method


def parse_choices(texts: Sequence[str]) -> list[MethodChoice]:
    """`["pld,sps:num_tokens=4,schedule=constant"]` as choices, in order, each once.

    A piece with `=` before any `:` is an option of the method before it.
    """
    choices: list[tuple[str, dict[str, str]]] = []
    for piece in (piece.strip() for text in texts for piece in text.split(",")):
        if not piece:
            continue
        name, _, rest = piece.partition(":")
        if "=" in name:
            if not choices:
                raise UserError(
                    f"Option {piece!r} has no method before it.",
                    "Write METHOD:option=value,option=value.",
                )
            rest = piece
        else:
            choices.append((name, {}))
        if rest:
            _add_option(choices[-1], rest)
    unique = {str(choice): choice for choice in (MethodChoice(n, o) for n, o in choices)}
    return list(unique.values())


def _add_option(choice: tuple[str, dict[str, str]], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(
            f"Option {text!r} of method {choice[0]!r} has no value.",
            f"Write {choice[0]}:{key}=VALUE.",
        )
    choice[1][key.strip()] = value.strip()


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option of a method, read off the field of its options dataclass."""

    name: str
    kind: str
    default: object
    help: str


def describe_options(method: Method) -> list[OptionInfo]:
    """The options of a method, in order."""
    hints = typing.get_type_hints(method.options)
    return [
        OptionInfo(f.name, _kind(hints[f.name]), f.default, f.metadata.get("help", ""))
        for f in fields(method.options)
    ]


def make_options(method: Method, given: Mapping[str, str]) -> Any:
    """The method's options object from what the user gave, the rest at its defaults.

    Raises:
        UserError: an unknown option, or a value of the wrong kind or out of range.
    """
    hints = typing.get_type_hints(method.options)
    known = {f.name: f for f in fields(method.options)}
    values = {}
    for key, text in given.items():
        if key not in known:
            raise unknown_name(f"option of {method.name!r}", key, known)
        value = _parse_value(method.name, key, hints[key], text)
        low = known[key].metadata.get("min")
        if low is not None and value < low:
            raise UserError(
                f"Option {key}={text} of method {method.name!r} is too small.",
                f"Give at least {low}.",
            )
        values[key] = value
    return method.options(**values)


def _parse_value(method: str, key: str, hint: Any, text: str) -> Any:
    if typing.get_origin(hint) is typing.Literal:
        allowed = typing.get_args(hint)
        if text not in allowed:
            raise unknown_name(f"value of {method}:{key}", text, allowed)
        return text
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"Option {key}={text!r} of method {method!r} is no truth value.",
                            f"Write {method}:{key}=true or =false.")  # fmt: skip
        return text.lower() == "true"
    try:
        return hint(text)
    except ValueError as error:
        raise UserError(
            f"Option {key}={text!r} of method {method!r} is no {hint.__name__}.",
            f"Write {method}:{key}=VALUE with a {hint.__name__}.",
        ) from error


def _kind(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(typing.get_args(hint))
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _builtins() -> dict[str, Path]:
    found = {
        module.name: Path(folder) / f"{module.name}.py"
        for folder in specbench.methods.__path__
        for module in pkgutil.iter_modules([folder])
        if not module.name.startswith("_")
    }
    places = {name: place for place, name in enumerate(PAPER_ORDER)}
    return dict(sorted(found.items(), key=lambda item: (places.get(item[0], len(places)), item[0])))


def _plugins() -> Sequence[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda p: p.name)


def _docstring_line(path: Path) -> str:
    """The first line of a module's docstring, without importing the module."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]
