"""Check arguments, stdout and stderr.

The streams may be closed, full, or unable to hold every character.
"""

import codecs
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

from specbench.errors import UserError, printable
from specbench.log.files import FULL


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that the run files (JSON) or a terminal cannot hold.

    Raises:
        UserError: an argument or the working folder is not UTF-8, or has control characters.
    """
    try:
        folder = str(Path.cwd())
    except OSError as error:
        raise UserError("The working folder no longer exists.", "Change to another.") from error
    is_prompt = "race" in arguments[:2]  # other commands take only names
    for argument in (*arguments, folder):
        name = argument
        if is_prompt:
            name = argument.replace("\n", "").replace("\t", "")
        if printable(name) != name:
            raise UserError(
                f"{argument!r} is not UTF-8, or has control characters.",
                "Rename the file or folder, or correct the argument.",
            )


IN_ASCII = "specbench-ascii"
"""The name of the error handler `_in_ascii`."""
_ASCII_OF = {"±": "+-", "×": "x", "…": "...", "→": "->", "─": "-", "–": "-"}


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for the characters that a stream cannot hold, and the position after them."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII_OF.get(character, "?") for character in lacking), error.end


codecs.register_error(IN_ASCII, _in_ascii)


@contextmanager
def checked_streams() -> Iterator[None]:
    """Replace characters that stdout and stderr cannot hold, and write all of stdout at the end.

    Raises:
        UserError: stdout is closed or full.
    """
    if sys.stdout is None:
        raise UserError("stdout is closed.", "Send it to a file, or to /dev/null.")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=IN_ASCII)
    try:
        yield
    finally:
        with unhandled_os_errors():
            sys.stdout.flush()


@contextmanager
def unhandled_os_errors() -> Iterator[None]:
    """Turn an error of the system that nothing else handled into a UserError."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # otherwise Python would try again to write the rest of stdout
            with suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        place = error.filename or "stdout"
        hint = "Free space there, then repeat the command." if error.errno in FULL else ""
        raise UserError(f"{place}: {error.strerror or error}.", hint) from error
