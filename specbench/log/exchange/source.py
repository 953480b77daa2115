"""Read a result file of another tool strictly, and note what is odd in it.

JSON has neither NaN nor infinity, and an object has each key only once. If a tool broke these
rules, the values are noted with their place and left out, or the file is refused.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from specbench.errors import UserError, os_errors

RESTORE = "Restore the file. docs/convert.md describes the formats."
_MOST = 2**63 - 1
"""The largest integer that is read. Nanoseconds since 1970 are below it."""
REQUIRED = object()
"""Stands for the default of a required field."""
_CLOSE = 0.85
"""Minimum similarity of a misspelt key to the required one."""


@dataclass(slots=True)
class SourceFile:
    """A file with its content, and the oddities found in it so far."""

    path: Path
    sha256: str
    num_bytes: int
    entries: tuple["Fields", ...] = ()
    """The JSON values of the file: one per line, or one for the whole file."""
    oddities: list[str] = field(default_factory=list)
    """Warnings of the import, as sentences with the file and the place."""

    def note(self, place: str, text: str) -> None:
        """Add an oddity at a place."""
        self.oddities.append(f"{self._at(place)}: {text}")

    def error(self, place: str, text: str) -> UserError:
        """The error of a file that is damaged at a place."""
        return UserError(f"{self._at(place)}: {text}", RESTORE)

    def _at(self, place: str) -> str:
        return f"{self.path.name}, {place}" if place else self.path.name


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON value of a file. Fields are found by paths, such as "info.timings.request_start"."""

    source: SourceFile
    place: str
    """Place of the value in the file, such as "line 3". Empty for the whole file."""
    content: Any
    """The value."""

    def has(self, *names: str) -> bool:
        """True for an object with all of these keys."""
        return isinstance(self.content, Mapping) and all(name in self.content for name in names)

    def get(self, path: str, kind: Any, default: Any = REQUIRED) -> Any:
        """The field at a path such as "timings.prompt_ms", as a value of the type `kind`.

        The default stands for a field that is absent or null. A key is also read, and noted as an
        oddity of the file, if it has other punctuation or capitals, or (in a required field) is
        misspelt.

        Raises:
            UserError: the field has another type, or is absent without a default.
        """
        content = self.content  # the value reached so far; None if it is absent
        for name in path.split("."):
            content = self._child(content, name, is_required=default is REQUIRED)
        if content is None and default is not REQUIRED:
            return default
        try:
            return msgspec.convert(content, kind)
        except (msgspec.ValidationError, OverflowError) as error:  # it does not fit the type
            # A message of msgspec: "Expected `int`, got `str` - at `$.turns[0]`".
            message, _, inner_path = str(error).partition(" - at ")
            inner_path = inner_path.strip("`").removeprefix("$")
            reason = message[:1].lower() + message[1:].replace("`", "")
            raise self.error(f"{path}{inner_path}: {reason}") from error

    def each(self, path: str, default: Any = REQUIRED) -> list["Fields"]:
        """The objects of a list."""
        objects = self.get(path, list[dict[str, Any]], default)
        return [
            Fields(self.source, f"{self.place}, {path}[{number}]".removeprefix(", "), content)
            for number, content in enumerate(objects)
        ]

    def first(self, path: str) -> "Fields":
        """The first object of a list."""
        objects = self.each(path)
        if not objects:
            raise self.error(f"{path}: expected an element")
        return objects[0]

    def note(self, text: str) -> None:
        """Add an oddity at this value."""
        self.source.note(self.place, text)

    def error(self, text: str) -> UserError:
        """The error of a file that is damaged here."""
        return self.source.error(self.place, text)

    def _child(self, content: Any, name: str, *, is_required: bool) -> Any:
        """The value of the key `name` in an object, or None if there is no such key or no object.

        A key with the same letters and digits is taken, too, and noted. For a required key, so is
        the most similar key, if it is similar enough.
        """
        if not isinstance(content, Mapping):
            return None
        if name in content:
            return content[name]
        key_by_letters = {_letters(key): key for key in content}  # by its letters and digits
        least_similarity = _CLOSE if is_required else 1.0  # 1: the same letters and digits
        similar = get_close_matches(_letters(name), key_by_letters, n=1, cutoff=least_similarity)
        if not similar:
            return None
        misspelt = key_by_letters[similar[0]]
        self.note(f"the key {misspelt!r} is misspelt, and is read as {name!r}")
        return content[misspelt]


def _letters(key: str) -> str:
    return re.sub(r"[^a-z0-9]", "", key.casefold())


def read_source(path: Path) -> SourceFile:
    """Read a file that has one JSON value, or one per line. A file whose name ends in ".csv",
    ".yaml" or ".yml" is read as CSV or YAML.

    Raises:
        UserError: the file cannot be read, is empty, or is malformed. The message names the place.
    """
    with os_errors(f"{path} cannot be read", "Give a result file."):
        raw = path.read_bytes()
    source = SourceFile(path, sha256(raw).hexdigest(), len(raw))
    try:
        file_text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_number = raw.count(b"\n", 0, error.start) + 1
        raise source.error(
            f"line {line_number}", f"byte {error.start} is not UTF-8, the encoding of JSON"
        ) from error
    # Lines with content, each after its number, from 1.
    lines = [(number, line) for number, line in enumerate(file_text.split("\n"), 1) if line.strip()]
    if lines and path.suffix in _READERS:  # CSV or YAML
        source.entries = tuple(_READERS[path.suffix](source, file_text))
    else:
        # The file is one value over several lines if the text of its first line alone is not JSON.
        is_one_value = len(lines) > 1 and not _is_json(lines[0][1])
        texts = [(0, file_text)] if is_one_value else lines  # 0 stands for the whole file
        source.entries = tuple(_fields(source, number, json_text) for number, json_text in texts)
    if not source.entries:  # a CSV file may have a heading without rows
        raise source.error("", "the file has no values")
    return source


def _read_csv(source: SourceFile, csv_text: str) -> Iterator[Fields]:
    """Yield a value per row. The first row has the names of the fields."""
    try:
        for number, row in enumerate(csv.DictReader(io.StringIO(csv_text), strict=True), 2):
            yield Fields(
                source,
                f"line {number}",
                {column: cell_text for column, cell_text in row.items() if column and cell_text},
            )
    except csv.Error as error:
        raise source.error("", f"expected CSV, found {error}") from error


def _read_yaml(source: SourceFile, yaml_text: str) -> Iterator[Fields]:
    """Yield the file as one value."""
    from msgspec import yaml  # needs PyYAML, which transformers installs

    try:
        # through JSON, so that all keys become texts
        yield Fields(source, "", json.loads(json.dumps(yaml.decode(yaml_text))))
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise source.error("", f"expected YAML, found {problem}") from error


_READERS = {".csv": _read_csv, ".yaml": _read_yaml, ".yml": _read_yaml}
"""Readers of files that are not JSON, by file name extension."""


def _is_json(line: str) -> bool:
    """True if a line is a JSON value by itself."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _fields(source: SourceFile, line_number: int, json_text: str) -> Fields:
    """The JSON value in `json_text`. The text is the line with this number, or the whole file
    (number 0).

    NaN and infinities become null, and are noted as oddities of the file.

    Raises:
        UserError: the text is not JSON, a number is too large, or an object has a key twice.
    """
    place = f"line {line_number}" if line_number else ""
    constants: list[str] = []  # names of the constants that became null: "NaN", "Infinity"
    try:
        content = json.loads(
            json_text,
            parse_constant=constants.append,  # returns None, which replaces the constant
            parse_int=_whole,
            parse_float=finite,
            object_pairs_hook=_distinct,
        )
    except json.JSONDecodeError as error:
        where = place or f"line {error.lineno}"  # the parser counts lines within the text
        problem = f"expected JSON, found {error.msg[:1].lower()}{error.msg[1:]}"
        raise source.error(f"{where}, column {error.colno}", problem) from error
    except (ValueError, RecursionError) as error:  # from the three functions, or from nesting
        raise source.error(place, str(error)) from error
    if constants:
        names = ", ".join(sorted({*constants}))
        source.note(place, f"{len(constants)} values that JSON does not have are left out: {names}")
    return Fields(source, place, content)


def _whole(digits: str) -> int:
    """The integer in a text. Raise ValueError above _MOST, before Python converts many digits."""
    if len(digits) > len(str(_MOST)) + 1 or abs(int(digits)) > _MOST:
        raise ValueError(f"{digits[:20]} is too large for a number")
    return int(digits)


def finite(digits: str) -> float:
    """The number in a text. Raise ValueError if it is not a number, or too large for a float."""
    number = float(digits)
    if math.isnan(number):
        raise ValueError(f"{digits} is not a number")
    if math.isinf(number):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return number


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these pairs of a key and a value. Raise ValueError if a key occurs twice."""
    content: dict[str, Any] = {}
    for key, element in pairs:
        if key in content:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        content[key] = element
    return content
