"""End a command on Ctrl-C, SIGTERM, SIGHUP or SIGQUIT, and say how to continue the work.

The exit code is 130. Typer turns KeyboardInterrupt into a silent exit, so the interrupt is caught
before typer sees it.
"""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from specbench.cli.streams import unhandled_os_errors
from specbench.errors import SpecbenchError, is_interrupt, send_dropped_interrupts

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(SpecbenchError):
    """The user or the system stopped the command, which exits with 130."""

    exit_code = 130


class InterruptibleGroup(TyperGroup):
    """Commands that SIGTERM, SIGHUP and SIGQUIT end in the same way as Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. SIGTERM, SIGHUP and SIGQUIT interrupt it, unless they were ignored."""
        outer_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        for signal_number, handler in outer_handlers.items():
            if handler != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(signal_number, interrupt_once)
        try:
            with unhandled_os_errors():  # typer would end silently if a pipe is closed
                return super().invoke(ctx)
        except SpecbenchError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if not is_interrupt(error):
                raise
            raise Interrupted("Interrupted.") from None
        finally:
            for signal_number, handler in outer_handlers.items():
                signal.signal(signal_number, handler)


def interrupt_once(received: int, _frame: Any) -> None:
    """Ignore these signals from now on, so that a second one does not disturb the shutdown.

    Python drops the first one if it arrives in a finalizer. It is then sent again. After a hang-up
    there is no terminal, so the output of the command is dropped.
    """
    send_dropped_interrupts()
    for signal_number in _SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    if received == signal.SIGHUP:
        for stream in (sys.stdout, sys.stderr):
            if stream.isatty():
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise KeyboardInterrupt


@contextmanager
def resumable(folder: Path, option: str, arguments: Sequence[str]) -> Iterator[None]:
    """If the work in `folder` is interrupted, say how to continue it.

    `option` is the option that names the folder, and `arguments` are those of the interrupted call.
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
    """Return the same call with its folder and `--resume`."""
    words = [*_program(), *arguments]
    if not any(word == option or word.startswith(f"{option}=") for word in words):
        words += [option, str(folder)]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def _program() -> list[str]:
    """Return the words that start this program from the folder where it was started."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return [sys.executable, "-m", "specbench"]
    on_path = shutil.which("specbench")
    is_on_path = on_path is not None and Path(on_path).resolve() == script.resolve()
    is_known_by_path_alone = script.is_file() and not is_on_path
    return [sys.argv[0] if is_known_by_path_alone else "specbench"]
