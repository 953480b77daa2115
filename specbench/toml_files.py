"""TOML files read into typed values.

Must not know what a file describes.
"""

import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

from specbench.errors import UserError

T = TypeVar("T")


def read_toml(path: Path, kind: type[T], *, what: str, hint: str) -> T:
    """The file as a value of `kind`; every key and type is checked.

    Raises:
        UserError: the file is unreadable, or a field is missing, unknown or of another type. The
            message names `what` it is, the file and the field.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), kind)
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise UserError(f"{what} {path} cannot be read: {error}", hint) from error
