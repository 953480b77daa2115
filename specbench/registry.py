"""Lazy registry of methods by name. A method is imported on first use.

Built-in methods are the modules of `methods/`. Installed packages add others through the
entry-point group `specbench.methods`; each entry names a `Method`.
"""

from __future__ import annotations

import importlib
import itertools
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from specbench.errors import (
    SpecbenchError,
    UserError,
    containing,
    printable,
    time_limit,
    unknown_name,
)
from specbench.methods import described
from specbench.methods._source import read_options

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from specbench.engine.drafter import Method

GROUP = "specbench.methods"

IMPORT_LIMIT_S = 30.0
"""The longest that a plug-in may take to import."""

MOST = 1000
"""The largest value of a built-in method's integer options: a step drafts no more than that."""

GROUPS = ("papers", "all")
"""Names that stand for several methods: the papers', and all that work."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered method for `specbench list methods`. `error` is the reason if it is broken."""

    name: str
    summary: str
    origin: str
    error: str = ""


def names() -> list[str]:
    """Every registered name, built-ins first."""
    return [*described(), *(p.name for p in _plugins())]


def paper_methods() -> list[str]:
    """The methods of the papers, in their order."""
    return [name for name, about in described().items() if about.paper_order is not None]


def entries() -> list[Entry]:
    """Every registered method. Built-ins are not imported; plug-ins are, to find broken ones."""
    ours = [_entry(name, "specbench") for name in described()]
    return ours + [_entry(one.name, _origin(one)) for one in _plugins()]


def _entry(name: str, origin: str) -> Entry:
    try:
        _plugin_of(name)
        about = described().get(name)
        fault, summary = (about.error, about.summary) if about else ("", get(name).summary)
        return Entry(name, printable(summary), origin, printable(fault))
    except UserError as error:
        return Entry(name, "", origin, printable(error.message))


def _origin(plugin: EntryPoint) -> str:
    with suppress(Exception):  # metadata that is damaged
        if plugin.dist:
            return printable(plugin.dist.name)
    return printable(plugin.value)


def get(name: str) -> Method:
    """The method with this name.

    Raises:
        UserError: the name is unknown or taken by two packages, or the method is broken.
    """
    plugin = _plugin_of(name)
    place = plugin.value if plugin else f"{GROUP}.{name}"
    importlib.import_module("specbench.engine.drafter")  # torch may take long, not the method
    try:
        with containing(f"importing {place}"), time_limit(IMPORT_LIMIT_S, f"importing {place}"):
            found = plugin.load() if plugin else importlib.import_module(place).METHOD
            _check(found, name)
    except SpecbenchError as error:
        raise UserError(
            f"Method {name!r} is broken: {printable(error.message)}",
            "Fix that package, or uninstall it." if plugin else "Fix that file.",
        ) from error
    return typing.cast("Method", found)


def _plugin_of(name: str) -> EntryPoint | None:
    """The entry point of a plug-in's method; None for ours. Refuses other and doubtful names."""
    claims = [one for one in _plugins() if one.name == name]
    if not claims and name not in described():
        raise unknown_name("method", name, [*names(), *GROUPS])
    if len(claims) + (name in described()) > 1:
        raise UserError(
            f"Method {name!r} is registered more than once ({', '.join(p.value for p in claims)}).",
            "Uninstall one of the packages, or rename its entry point.",
        )
    return claims[0] if claims else None


def _check(found: object, name: str) -> None:
    """Raise if this is not a method of this name, whose default options can be listed and stored.

    What the method's own code raises on the way is its fault too.
    """
    from specbench.engine.drafter import Method

    if not isinstance(found, Method):
        raise TypeError(f"it is a {type(found).__name__}, not a specbench.engine.drafter.Method")
    texts = (found.name, found.title, found.summary, found.paper)
    if not all(isinstance(text, str) for text in texts) or found.name != name:
        raise TypeError(f"its name is {found.name!r}, or its title or summary is not a text")
    if not callable(found.build):
        raise TypeError("its build cannot be called")
    describe_options(found)
    options = make_options(found, {})
    msgspec.json.encode(asdict(options))
    found.is_lossless_with(options)


def default_entries() -> list[Entry]:
    """The methods of a run that names none: ours that are defaults, and all plug-ins."""
    ours = {name for name, about in described().items() if about.is_default}
    return [one for one in entries() if one.name in ours or one.origin != "specbench"]


def expand_groups(texts: Sequence[str]) -> tuple[str, ...]:
    """The spellings of methods, with each group replaced by its members.

    Raises:
        UserError: a group is given options.
    """
    members: list[str] = []
    for choice in parse_choices(texts):
        if choice.name in GROUPS:
            check_group(choice)
        if choice.name == "papers":
            members += paper_methods()
        elif choice.name == "all":
            members += [entry.name for entry in entries() if not entry.error]
        else:
            members.append(str(choice))
    return tuple(dict.fromkeys(members))


def check_group(choice: MethodChoice) -> None:
    """Raise UserError if a group of methods is given options."""
    if choice.given:
        raise UserError(
            f"{choice} gives options to a group of methods.",
            f"Write {choice.name},METHOD:{str(choice).partition(':')[2]}.",
        )


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option of a method: a field of its options dataclass."""

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


def option_names(name: str) -> list[str]:
    """The names of a method's options. A method of specbench is not imported for it.

    Raises:
        UserError: the name is unknown, or the method is broken.
    """
    options = read_options(name) if _plugin_of(name) is None else None
    return [field.name for field in fields(options or get(name).options)]


def make_options(method: Method, given: Mapping[str, str]) -> Any:
    """The method's options object: the given values, and defaults for the rest.

    Raises:
        UserError: an unknown option, or a value of the wrong type or out of range.
    """
    from specbench.engine.method_options import completed

    values = _parse_values(method.name, method.options, given)
    return completed(method.options)(**values)


def _parse_values(method: str, options: Any, given: Mapping[str, str]) -> dict[str, Any]:
    hints = typing.get_type_hints(options)
    known = {f.name: f for f in fields(options)}
    values = {}
    for key, text in given.items():
        if key not in known:
            raise unknown_name("option", key, known, of=repr(method))
        value = _parse_value(method, key, hints[key], text)
        metadata = known[key].metadata
        low, high = metadata.get("min", value), metadata.get("max", value)
        if hints[key] is int and method in described():
            high = metadata.get("max", MOST)
        if not low <= value <= high:
            size, limit = ("large", f"most {high}") if value > high else ("small", f"least {low}")
            raise UserError(
                f"Option {key}={text} of method {method!r} is too {size}.", f"Give at {limit}."
            )
        values[key] = value
    return values


def check_choice(choice: MethodChoice) -> None:
    """Check a method's name and options without importing it, which takes seconds.

    Rules between options, and the options of plug-ins, are left to `make_options`.

    Raises:
        UserError: an unknown name or option, or a value of the wrong type or out of range.
    """
    if _plugin_of(choice.name) is None and (options := read_options(choice.name)):
        _parse_values(choice.name, options, choice.given)


def _parse_value(method: str, key: str, hint: Any, text: str) -> Any:
    if typing.get_origin(hint) is typing.Literal:
        return _one_of(typing.get_args(hint), text, f"{method}:{key}")
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if hint is bool:
        return _one_of(("true", "false"), text.lower(), f"{method}:{key}") == "true"
    try:
        return hint(text)
    except ValueError as error:
        raise UserError(
            f"Option {key}={text!r} of method {method!r} is not of type {hint.__name__}.",
            f"Write {method}:{key}=VALUE with {hint.__name__} VALUE.",
        ) from error


def _one_of(allowed: Sequence[str], text: str, of: str) -> str:
    if text not in allowed:
        raise unknown_name("value", text, allowed, of=of)
    return text


def _kind(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(typing.get_args(hint))
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _plugins() -> Sequence[EntryPoint]:
    paths = map(Path, sys.path)
    return _plugins_in(tuple((one, one.stat().st_mtime_ns) for one in paths if one.exists()))


@cache
def _plugins_in(folders: tuple[tuple[Path, int], ...]) -> Sequence[EntryPoint]:
    """The methods of packages installed in these folders, at these times of their last change."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP), key=lambda p: p.name)


_COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma outside brackets."""


@dataclass(frozen=True, slots=True)
class MethodChoice:
    """A method with the options given by the user: `pld:ngram=2`."""

    name: str
    given: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.given.items())
        return f"{self.name}:{options}" if options else self.name


def parse_choices(texts: Sequence[str]) -> list[MethodChoice]:
    """Parse `["pld,sps:num_tokens=4,schedule=constant"]` into choices, without duplicates.

    A piece with `=` before any `:` is an option of the preceding method. A swept option,
    `eagle2:depth=3|5`, gives a choice for each value.
    """
    choices: list[tuple[str, dict[str, str]]] = []
    for piece in (part.strip() for text in texts for part in _COMMA.split(text)):
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
    swept = (MethodChoice(name, given) for name, options in choices for given in _sweep(options))
    return list({str(choice): choice for choice in swept}.values())


def _add_option(choice: tuple[str, dict[str, str]], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(
            f"Option {text!r} of method {choice[0]!r} has no value.",
            f"Write {choice[0]}:{key}=VALUE.",
        )
    key, value = key.strip(), value.strip()
    if key in choice[1]:
        name, earlier = choice[0], choice[1][key]
        raise UserError(
            f"Option {key} of method {name!r} is given twice: {earlier} and {value}.",
            f"To run both: --method '{name}:{key}={earlier}|{value}'.",
        )
    choice[1][key] = value


def _sweep(given: Mapping[str, str]) -> list[dict[str, str]]:
    """Every combination of the values of a method's options; the last option changes fastest.

    Raises:
        UserError: a sweep with an empty value.
    """
    values = [[(key, value) for value in _values(key, text)] for key, text in given.items()]
    return [dict(pairs) for pairs in itertools.product(*values)]


def _values(key: str, text: str) -> list[str]:
    if text.startswith("[") and text.endswith("]"):
        values = text[1:-1].split(",")
    elif "|" in text:
        values = text.split("|")
    else:
        return [text]
    stripped = [value.strip() for value in values]
    if not all(stripped):
        raise UserError(
            f"Option {key}={text} has an empty value.", f"Write {key}=3|5|7 or {key}=[3,5,7]."
        )
    return stripped
