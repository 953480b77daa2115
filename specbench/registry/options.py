"""Describe the options of methods in words, and read their values from text."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, Any

from specbench.errors import UserError, unknown_name
from specbench.methods import described

if TYPE_CHECKING:
    from specbench.engine.drafter import Method

MAX_INTEGER = 1000
"""The largest value of a built-in method's integer options. No step drafts more tokens."""


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option of a method, which is a field of its options dataclass."""

    name: str
    kind: str
    default: object
    help: str


def describe_options(method: Method) -> list[OptionInfo]:
    """Return the options of a method in order."""
    hints = typing.get_type_hints(method.options)
    return [
        OptionInfo(
            option.name, _kind(hints[option.name]), option.default, option.metadata.get("help", "")
        )
        for option in fields(method.options)
    ]


def make_options(method: Method, given: Mapping[str, str]) -> Any:
    """Make a method's options object from the given values and the defaults of the rest.

    Raises:
        UserError: an option is unknown, or a value has a wrong type or is out of range.
    """
    from specbench.engine.method_options import completed

    values = read_values(method.name, method.options, given)
    return completed(method.options)(**values)


def read_values(method: str, options: Any, given: Mapping[str, str]) -> dict[str, Any]:
    """Convert texts to values in the types of a method's options (a dataclass).

    Raises:
        UserError: an option is unknown, or a value has a wrong type or is out of range.
    """
    hints = typing.get_type_hints(options)
    declared = {option.name: option for option in fields(options)}
    values = {}
    for name, text in given.items():
        if name not in declared:
            raise unknown_name("option", name, declared, of=repr(method))
        values[name] = _read_value(method, name, hints[name], text)
        _check_range(method, declared[name], hints[name], values[name], text)
    return values


def _check_range(method: str, option: Field[Any], hint: Any, value: Any, text: str) -> None:
    """Raise UserError if a value is infinite, below the option's `min` or above its `max`."""
    if isinstance(value, float) and not isfinite(value):
        raise UserError(
            f"Option {option.name}={text} of method {method!r} is not a finite number.",
            f"Its default is {option.default}.",
        )
    smallest = option.metadata.get("min", value)
    default_largest = MAX_INTEGER if hint is int and method in described() else value
    largest = option.metadata.get("max", default_largest)
    what = f"Option {option.name}={text} of method {method!r}"
    if value > largest:
        raise UserError(f"{what} is too large.", f"Give at most {largest}.")
    if value < smallest:
        raise UserError(f"{what} is too small.", f"Give at least {smallest}.")


def _read_value(method: str, name: str, hint: Any, text: str) -> Any:
    """Convert a text to the type of an option."""
    if typing.get_origin(hint) is typing.Literal:
        return _word_of(typing.get_args(hint), text, f"{method}:{name}")
    if isinstance(hint, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    if hint is bool:
        return _word_of(("true", "false"), text.lower(), f"{method}:{name}") == "true"
    try:
        return hint(text)
    except ValueError as error:
        raise UserError(
            f"Option {name}={text!r} of method {method!r} is not of type {hint.__name__}.",
            f"Write {method}:{name}=VALUE with {hint.__name__} VALUE.",
        ) from error


def _word_of(allowed: Sequence[str], text: str, option: str) -> str:
    """Return the text if it is one of the words that an option allows. Refuse other words."""
    if text not in allowed:
        raise unknown_name("value", text, allowed, of=option)
    return text


def _kind(hint: Any) -> str:
    """Return the type of an option in words: `int`, or `lossless | typical`."""
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(typing.get_args(hint))
    return hint.__name__ if isinstance(hint, type) else str(hint)
