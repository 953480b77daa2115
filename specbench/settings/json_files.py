"""Read and compare the files of acceptance profiles and of cost curves."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from specbench.errors import UserError, reading

SCHEMA = 1
"""The version of both formats."""

Header = TypeVar("Header", bound=msgspec.Struct)


class Compared(NamedTuple):
    """A property with its values on two sides."""

    name: str
    first: Any
    second: Any


def check_same(title: str, where: tuple[str, str], compared: Iterable[Compared], hint: str) -> None:
    """Raise an error if two sides differ. It names both values of each property.

    Args:
        title: the first line of the error.
        where: the words after the first and after the second value, such as "in the curve".
        compared: the properties.
        hint: how to get sides that agree.

    Raises:
        UserError: a property differs.
    """
    in_first, in_second = where
    lines = [
        f"  {name}: {first or 'none'} {in_first}, {second or 'none'} {in_second}"
        for name, first, second in compared
        if first != second
    ]
    if lines:
        raise UserError("\n".join([title, *lines]), hint)


def check_free(folder: str | Path | None, file_name: str, what: str) -> None:
    """Raise UserError if a folder already has a profile or a cost curve."""
    if folder is not None and Path(folder, file_name).exists():
        raise UserError(f"{folder} holds a {what}.", "Give --out another folder.")


def read_json(path: Path, header_type: type[Header], what: str, hint: str) -> Header:
    """Read a JSON file into a struct, and check its `schema`, the version of the format.

    Args:
        path: path of the file.
        header_type: the struct of all that the file holds.
        what: names the file in errors, such as "Cost curve".
        hint: the advice in errors.

    Raises:
        UserError: there is no such file, or it is damaged or of a newer version.
    """
    if not path.is_file():
        raise UserError(f"{path.parent} holds no {what.lower()} ({path.name}).", hint)
    with reading(path, what, hint):  # turns errors of the file into UserError
        header = msgspec.json.decode(path.read_bytes(), type=header_type)
    schema = getattr(header, "schema", 0)  # 0: a struct without this field
    if schema > SCHEMA:  # the version that this program writes
        message = f"{path} has schema {schema}, newer than {SCHEMA}."
        raise UserError(message, "Use a newer specbench.")
    return header
