"""Arguments, stdout and stderr, which may be closed, full, or unable to hold every character."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

from specbench.errors import UserError, printable


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse what the run files, which are JSON, and a terminal cannot hold.

    Raises:
        UserError: an argument or the working folder is not UTF-8, or has control characters.
    """
    try:
        folder = str(Path.cwd())
    except OSError as error:
        raise UserError("The working folder does not exist any more.", "Change to one.") from error
    prose = "\n\t" if "race" in arguments[:2] else ""  # its argument is a prompt, not a name
    for text in (*arguments, folder):
        if printable(name := text.translate(dict.fromkeys(map(ord, prose)))) != name:
            raise UserError(
                f"{text!r} is not UTF-8, or has control characters.",
                "Rename the file or folder, or correct the argument.",
            )


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
            stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        with told_os_errors():
            sys.stdout.flush()


@contextmanager
def told_os_errors() -> Iterator[None]:
    """Turn an error of the system that nothing else has turned into words into a UserError."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            _discard_stdout()
        raise UserError(f"{error.filename or 'stdout'}: {error.strerror or error}.") from error


def _discard_stdout() -> None:
    """Send what is still buffered nowhere: Python would try to write it again when it ends."""
    with suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
