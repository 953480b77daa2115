"""TOML files read into typed values."""

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specbench.errors import UserError

T = TypeVar("T")
_UNKNOWN = re.compile(r"unknown field `(.+?)`")


def read_toml(path: Path, kind: type[T], *, what: str, hint: str) -> T:
    """The file as a value of `kind`; every key and type is checked.

    Raises:
        UserError: the file is unreadable, or a field is missing, unknown or of another type. The
            message names `what` it is, the file and the field, and the line of an unknown field.
    """
    try:
        return _convert(path.read_text(encoding="utf-8"), kind)
    except (OSError, ValueError, RecursionError) as error:  # msgspec's too
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{what} {path} cannot be read: {reason}", hint) from error


def line_of(text: str, key: str, value: Any = None) -> int | None:
    """The number of the line that sets a key, to this value if one does, or opens its table."""
    name = re.escape(key)
    found = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(rf"\s*(?:\[+(?:.*\.)?)?{name}\s*[=\].]", line)
    ]
    return next((number for number, line in found if _value(line, key) == value), None) or next(
        (number for number, _ in found), None
    )


def _convert(text: str, kind: type[T]) -> T:
    values = tomllib.loads(text)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        if not (unknown := _UNKNOWN.search(str(error))):
            raise
        key, line = unknown[1], line_of(text, unknown[1])
        schemas = msgspec.json.schema(kind)["$defs"].values()
        known = sorted({name for schema in schemas for name in schema.get("properties", ())})
        close = get_close_matches(key, known, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(known)}."
        raise ValueError(f"{f'line {line}: ' if line else ''}{error}.{meant}") from error


def _value(line: str, key: str) -> Any:
    """The value that a line alone gives a key; None without one."""
    try:
        return tomllib.loads(line).get(key)
    except tomllib.TOMLDecodeError:
        return None
