"""Read TOML files into typed values, and write TOML values."""

import json
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specbench.errors import UserError

KindT = TypeVar("KindT")
_UNKNOWN_FIELD = re.compile(r"unknown field `(.+?)`")


def read_toml(path: Path, kind: type[KindT], *, what: str, hint: str) -> KindT:
    """Read the file as a value of `kind`. Every key and type is checked.

    Raises:
        UserError: the file is unreadable, or a field is missing, unknown or of another type. The
            message names the file, `what` it is and the field, and the line of an unknown field.
    """
    try:
        return _convert(path.read_text(encoding="utf-8-sig"), kind)
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{what} {path} cannot be read: {reason}", hint) from error


def toml_key(name: str) -> str:
    """Return a name as a key of TOML, in quotes if it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: Any) -> str:
    """Return a text, number, bool or list of these in TOML. Other values become their text.

    Raises:
        UserError: a text that is not Unicode, such as a file's name in another encoding.
    """
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value)  # TOML also writes inf and nan
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    text = str(value)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{text!r} is not UTF-8: no TOML file can hold it.", "Rename it.")
    # TOML has the escapes of JSON, except for surrogates. It also escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def line_of(text: str, key: str, value: Any = None) -> int | None:
    """Return the number of the line that sets `key` to `value`, or else of the first with `key`."""
    pattern = re.compile(rf"\s*(?:\[+(?:.*\.)?)?{re.escape(key)}\s*[=\].]")
    lines_of_key = {
        line_number: line
        for line_number, line in enumerate(text.splitlines(), start=1)
        if pattern.match(line)
    }
    for line_number, line in lines_of_key.items():
        if _value_set_by(line, key) == value:
            return line_number
    return next(iter(lines_of_key), None)


def _convert(text: str, kind: type[KindT]) -> KindT:
    """Convert a TOML text to a value. Raise ValueError, with the line of an unknown field."""
    content = tomllib.loads(text)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN_FIELD.search(str(error))
        if not unknown:
            raise
        key = unknown[1]
        schemas = msgspec.json.schema(kind)["$defs"].values()
        fields = sorted({name for schema in schemas for name in schema.get("properties", ())})
        closest = get_close_matches(key, fields, n=1)
        line = line_of(text, key)
        where = f"line {line}: " if line else ""
        hint = f"Did you mean {closest[0]!r}?" if closest else f"Known: {', '.join(fields)}."
        raise ValueError(f"{where}{error}. {hint}") from error


def _value_set_by(line: str, key: str) -> Any:
    """Return the value that a single line of TOML sets for `key`, or None."""
    try:
        return tomllib.loads(line).get(key)
    except tomllib.TOMLDecodeError:
        return None
