"""Look up the methods of specbench and of installed packages by name.

A method is imported on first use. Built-in methods are the modules of `methods/`. Installed
packages add others through the entry-point group `specbench.methods`, in which each entry names a
`Method`.
"""

from __future__ import annotations

import importlib
import sys
import typing
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from specbench.errors import (
    SpecbenchError,
    UserError,
    containing,
    printable,
    same_name,
    time_limit,
    unknown_name,
)
from specbench.methods import described
from specbench.methods.shared.source import read_options
from specbench.registry.choices import MethodChoice, split_list
from specbench.registry.options import describe_options, make_options, read_values

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from specbench.engine.drafter import Method

GROUP = "specbench.methods"
"""The entry-point group of plug-ins, and the package of the built-in methods."""
IMPORT_LIMIT_S = 30.0
"""Seconds that the import of a plug-in may take."""
GROUPS = ("papers", "all")
"""Names of groups: the methods of the papers, and all methods that can be imported."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered method, as `specbench list methods` shows it."""

    name: str
    summary: str
    origin: str
    """The package that it comes from."""
    error: str = ""
    """The reason why it is broken, or ""."""


def names() -> list[str]:
    """Return every registered name, built-in methods first."""
    return [*described(), *(plugin.name for plugin in _plugins())]


def with_known_names(text: str) -> str:
    """Spell the names in a list of methods as registered, such as "eagle2" for "EAGLE-2"."""
    pieces = []
    for piece in split_list(text):
        name, colon, options = piece.partition(":")
        is_option = "=" in name  # an option of the method before it
        if not is_option and name.strip() not in described():
            name = same_name(name.strip(), [*names(), *GROUPS])
        pieces.append(f"{name}{colon}{options}")
    return ",".join(pieces)


def paper_methods() -> list[str]:
    """Return the methods that papers describe, in the order of `paper_order`."""
    return [name for name, about in described().items() if about.paper_order is not None]


def entries() -> list[Entry]:
    """Return every registered method. Only plug-ins are imported, to find broken ones."""
    built_in = [_entry(name, "specbench") for name in described()]
    return built_in + [_entry(plugin.name, _origin(plugin)) for plugin in _plugins()]


def default_entries() -> list[Entry]:
    """Return the methods of a run that names none: the built-in defaults, and all plug-ins."""
    defaults = {name for name, about in described().items() if about.is_default}
    return [entry for entry in entries() if entry.name in defaults or entry.origin != "specbench"]


def _entry(name: str, origin: str) -> Entry:
    about = described().get(name)
    try:
        _plugin_of(name)
        summary = about.summary if about else get(name).summary
    except UserError as error:
        return Entry(name, "", origin, printable(error.message))
    return Entry(name, printable(summary), origin, printable(about.error) if about else "")


def _origin(plugin: EntryPoint) -> str:
    """Return the name of a plug-in's package, or the location of its method if that is unknown."""
    with suppress(Exception):  # damaged metadata
        if plugin.dist:
            return printable(plugin.dist.name)
    return printable(plugin.value)


def get(name: str) -> Method:
    """Return the method with this name.

    Raises:
        UserError: the name is unknown or taken by two packages, or the method is broken.
    """
    plugin = _plugin_of(name)
    location = plugin.value if plugin else f"{GROUP}.{name}"
    doing = f"importing {location}"
    importlib.import_module("specbench.engine.drafter")  # not timed, since it imports torch
    try:
        with containing(doing), time_limit(IMPORT_LIMIT_S, doing):
            method = plugin.load() if plugin else importlib.import_module(location).METHOD
            _check(method, name)
    except SpecbenchError as error:
        raise UserError(
            f"Method {name!r} is broken: {printable(error.message)}",
            "Fix that package, or uninstall it." if plugin else "Fix that file.",
        ) from error
    return typing.cast("Method", method)


def _plugin_of(name: str) -> EntryPoint | None:
    """Return a plug-in's entry point, or None for ours. Refuse unknown and ambiguous names."""
    claims = [plugin for plugin in _plugins() if plugin.name == name]
    is_built_in = name in described()
    if not claims and not is_built_in:
        raise unknown_name("method", name, [*names(), *GROUPS])
    if len(claims) > 1 or (claims and is_built_in):
        locations = ", ".join(plugin.value for plugin in claims)
        raise UserError(
            f"Method {name!r} is registered more than once ({locations}).",
            "Uninstall one of the packages, or rename its entry point.",
        )
    return claims[0] if claims else None


def _check(method: object, name: str) -> None:
    """Check that this is a method of this name, whose default options can be listed and stored.

    Exceptions in the method's code also count as its faults.
    """
    from specbench.engine.drafter import Method

    if not isinstance(method, Method):
        raise TypeError(f"it is a {type(method).__name__}, not a specbench.engine.drafter.Method")
    texts = (method.name, method.title, method.summary, method.paper)
    if not all(isinstance(text, str) for text in texts) or method.name != name:
        raise TypeError(f"its name is {method.name!r}, or its title or summary is not a text")
    if not callable(method.build):
        raise TypeError("its build cannot be called")
    describe_options(method)
    options = make_options(method, {})
    msgspec.json.encode(asdict(options))
    method.is_lossless_with(options)


def expand_groups(choices: Iterable[MethodChoice]) -> list[MethodChoice]:
    """Replace each group by its methods, and drop duplicates.

    Raises:
        UserError: a group is given options.
    """
    members: list[MethodChoice] = []
    for choice in choices:
        if choice.name in GROUPS:
            check_group(choice)
        if choice.name == "papers":
            members += [MethodChoice(name) for name in paper_methods()]
        elif choice.name == "all":
            members += [MethodChoice(entry.name) for entry in entries() if not entry.error]
        else:
            members.append(choice)
    return list({str(choice): choice for choice in members}.values())


def check_group(choice: MethodChoice) -> None:
    """Raise UserError if a group of methods is given options."""
    if choice.given:
        raise UserError(
            f"{choice} gives options to a group of methods.",
            f"Write {choice.name},METHOD:{str(choice).partition(':')[2]}.",
        )


def check_choice(choice: MethodChoice) -> None:
    """Check a method's name and options without importing it, which takes seconds.

    This leaves rules between options and the options of plug-ins to `make_options`.

    Raises:
        UserError: a name or option is unknown, or a value has a wrong type or is out of range.
    """
    if _plugin_of(choice.name) is None and (options := read_options(choice.name)):
        read_values(choice.name, options, choice.given)


def option_names(name: str) -> list[str]:
    """Return the names of a method's options. Built-in methods are not imported for this.

    Raises:
        UserError: the name is unknown, or the method is broken.
    """
    options = read_options(name) if _plugin_of(name) is None else None
    return [option.name for option in fields(options or get(name).options)]


def _plugins() -> Sequence[EntryPoint]:
    """Return the methods of installed packages, sorted by name."""
    folders = [Path(folder) for folder in sys.path]
    return _plugins_in(
        tuple((folder, folder.stat().st_mtime_ns) for folder in folders if folder.exists())
    )


@cache
def _plugins_in(folders: tuple[tuple[Path, int], ...]) -> Sequence[EntryPoint]:
    """Return the methods of packages in these folders. Modified folders are read again."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP), key=lambda plugin: plugin.name)
