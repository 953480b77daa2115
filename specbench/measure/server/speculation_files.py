"""Read a user's files for an engine's speculation. They have a configuration, or draft sizes by
load.

`spec:file=FILE.json,name=NAME` is a method with the configuration in a file. `table=FILE.json` is
an option with a file of draft tokens by requests at once, as [[first, last, tokens], ...].
"""

from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from specbench.errors import UserError

Row = tuple[int, int, int]
"""The smallest and the largest number of requests at once, both included, and the draft tokens."""
_ROWS = "[["
"""The beginning of a table's rows in JSON."""


def read_configuration(file: str) -> dict[str, Any]:
    """The settings in a file, which is a JSON object with the engine's own names.

    Raises:
        UserError: there is no such file, or it has no object of settings.
    """
    settings = _read(file)
    if not isinstance(settings, dict) or not settings:
        raise UserError(
            f"{file} has no speculation settings.",
            'Write a JSON object with the engine\'s names: {"method": "ngram", ...}.',
        )
    return settings


def read_table(file: str) -> list[Row]:
    """The rows of a table of draft tokens by load, in order.

    A row has the smallest and the largest number of requests at once for which it holds, and the
    number of draft tokens. `file` is the table's path, or the rows themselves in JSON.

    Raises:
        UserError: there is no such file, it has no rows, or a row is wrong: its first number is
            below 1, above its last, or not above the last of the row before it, or its number of
            draft tokens is negative.
    """
    try:
        rows = msgspec.convert(_read(file), list[Row])
    except msgspec.ValidationError as error:
        raise _wrong_table(file, str(error)) from error
    if not rows:
        raise _wrong_table(file, "it has no row")
    for first, last, num_tokens in rows:
        if not 1 <= first <= last or num_tokens < 0:
            raise _wrong_table(file, f"[{first}, {last}, {num_tokens}] is not a range")
    for earlier, later in pairwise(rows):
        if later[0] <= earlier[1]:  # the later row begins before the earlier one ends
            raise _wrong_table(file, f"{list(later)} begins within {list(earlier)}")
    return rows


def _wrong_table(file: str, reason: str) -> UserError:
    return UserError(
        f"{file} is not a table of draft tokens by load: {reason}.",
        "Write rows [first, last, tokens], where first to last are requests at once: "
        "[[1, 8, 4], [9, 64, 0]].",
    )


def file_facts(file: str, content: Any) -> dict[str, Any]:
    """The name, hash and content of a file, for the header of a run.

    Rows that were given without a file have only their content.
    """
    if file.startswith(_ROWS):
        return {"content": content}
    path = Path(file).expanduser()
    digest = sha256(path.read_bytes()).hexdigest()
    return {"file": path.name, "sha256": digest, "content": content}


def _read(file: str) -> Any:
    """Decode a JSON file, or rows in JSON. Raises UserError if this fails."""
    path = Path(file).expanduser()
    try:
        content = file.encode() if file.startswith(_ROWS) else path.read_bytes()
        return msgspec.json.decode(content)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.", "Check the path.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}.", "Correct it.") from error
