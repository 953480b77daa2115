"""Ctrl-C, SIGTERM, SIGHUP and SIGQUIT: a message that names the folder and the command that
continues the work.

They end a command with exit code 130. Typer turns KeyboardInterrupt into a silent exit, so it is
caught before typer sees it.
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
    """The user, or the system, stopped the command. It exits with 130."""

    exit_code = 130


class InterruptibleGroup(TyperGroup):
    """Commands that SIGTERM, SIGHUP and SIGQUIT end as Ctrl-C does."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. SIGTERM, SIGHUP and SIGQUIT interrupt it, unless they were ignored."""
        outer_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        for signal_number, handler in outer_handlers.items():
            if handler != signal.SIG_IGN:  # nohup
                signal.signal(signal_number, interrupt_once)
        try:
            with unhandled_os_errors():  # before typer, which ends silently if a pipe is closed
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

    If Python drops the first one because it arrives in a finalizer, it is sent again. After a
    hang-up the terminal is gone, so what a command writes to it is dropped.
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
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return [sys.executable, "-m", "specbench"]
    on_path = shutil.which("specbench")
    is_on_path = on_path is not None and Path(on_path).resolve() == script.resolve()
    is_known_by_path_alone = script.is_file() and not is_on_path
    return [sys.argv[0] if is_known_by_path_alone else "specbench"]
