"""Ctrl-C, SIGTERM, SIGHUP and SIGQUIT: a message that names the folder and the command that
continues the work.

They end a command with exit code 130. Typer turns KeyboardInterrupt into a silent exit, so
that it is caught before typer sees it.

Also checks of arguments, and of stdout and stderr, which may be closed, full, or unable to
hold every character.
"""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from specbench.errors import SpecbenchError, UserError, printable


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that the run files (JSON) or a terminal cannot hold.

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
    """Turn an error of the system that was not handled before into a UserError."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # Python would write again what stdout still holds
            with suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise UserError(f"{error.filename or 'stdout'}: {error.strerror or error}.") from error


_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(SpecbenchError):
    """The user, or the system, stopped the command. It exits with 130."""

    exit_code = 130


class InterruptibleGroup(TyperGroup):
    """Commands that SIGTERM, SIGHUP and SIGQUIT end as Ctrl-C does."""

    def invoke(self, ctx: Any) -> Any:
        handlers = {one: signal.getsignal(one) for one in _SIGNALS}
        for one, previous in handlers.items():
            if previous != signal.SIG_IGN:  # nohup
                signal.signal(one, interrupt_once)
        try:
            with told_os_errors():  # before typer, which ends silently if a pipe is closed
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("Interrupted.") from None
        finally:
            for one, previous in handlers.items():
                signal.signal(one, previous)


def interrupt_once(number: int, frame: Any) -> None:
    """Ignore these signals from now on: a second one must not disturb the end.

    After a hang-up, what a command writes to its terminal is dropped: the terminal is gone.
    """
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    if number == signal.SIGHUP:
        for stream in (sys.stdout, sys.stderr):
            if stream.isatty():
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise KeyboardInterrupt


@contextmanager
def resumable(folder: Path, option: str, arguments: Sequence[str]) -> Iterator[None]:
    """Say how to continue the work in `folder` if it is interrupted.

    `option` names the folder, `arguments` are the interrupted call's.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not folder.is_dir() or not any(folder.iterdir()):
            raise
        raise Interrupted(
            f"Interrupted. What was done is kept in {folder}.",
            f"Continue with: {resume_command(arguments, option, folder)}",
        ) from None


def resume_command(arguments: Sequence[str], option: str, folder: Path) -> str:
    """The same call with its folder named and with `--resume`."""
    words = [*_program(), *arguments]
    if not any(word == option or word.startswith(f"{option}=") for word in words):
        words += [option, str(folder)]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def _program() -> list[str]:
    """The words that start this program from the folder where it was started."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return [sys.executable, "-m", "specbench"]
    found = shutil.which("specbench")
    is_found = found is not None and Path(found).resolve() == called.resolve()
    return [sys.argv[0] if called.is_file() and not is_found else "specbench"]
