"""Run commands in separate processes, which a timeout can end."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import IO, NamedTuple

from specbench.errors import SpecbenchError, UserError

GRACE_S = 20.0
"""Seconds that an interrupted run has to write its header before its process is killed."""


class Ended(NamedTuple):
    """The end of a process."""

    code: int | None
    """The exit status; None if the process was stopped at its timeout."""
    last: str
    """The last printed line that is not empty, or ""."""


def run_tried(
    command: Sequence[str],
    say: Callable[[str], object],
    *,
    timeout_s: float | None,
    total_s: float = math.inf,
    stdin: bytes = b"",
    only_killed: bool = False,
) -> None:
    """Run a command. If it has a timeout and fails, run it once more.

    Args:
        command: the words of the command line.
        say: receives the lines that the command prints.
        timeout_s: seconds after which a try is stopped; None for no timeout.
        total_s: seconds after which all tries are stopped.
        stdin: the command's standard input.
        only_killed: True to try again only if a signal or the timeout ended the command.

    Raises:
        SpecbenchError: no try succeeded, or the user made a mistake.
    """
    deadline_s = time.monotonic() + total_s
    most_tries = 1 if timeout_s is None else 2
    for num_tries in range(1, most_tries + 1):
        try_s = min(timeout_s or math.inf, deadline_s - time.monotonic())  # inf: no timeout
        ended = run_command(
            command, say, timeout_s=None if try_s == math.inf else try_s, stdin=stdin
        )
        exit_code = ended.code  # None at the timeout, below 0 if a signal killed the command
        if exit_code == 0:
            return
        # The last line that the command printed is the reason.
        reason = ended.last or f"It ended with {exit_code}."
        if exit_code is None:
            reason = f"It was stopped at its timeout of {try_s:.3g} s."
        has_ended_by_itself = exit_code is not None and exit_code >= 0
        # After a mistake of the user, a second try would fail like the first.
        is_final = exit_code == UserError.exit_code or (only_killed and has_ended_by_itself)
        if num_tries == most_tries or is_final or time.monotonic() >= deadline_s:
            raise SpecbenchError(reason)
        say(f"{reason} It is tried a second time.")


def run_command(
    command: Sequence[str],
    say: Callable[[str], object],
    *,
    timeout_s: float | None = None,
    stdin: bytes = b"",
) -> Ended:
    """Run a command in a new process group, which ends with the command.

    At its timeout, or if this process is interrupted, the command is told to end. If it has not
    ended GRACE_S seconds later, it is killed. An interrupt of this process is then raised again.

    Args:
        command: the words of the command line.
        say: receives each line that the command prints, as it is printed.
        timeout_s: seconds after which the command is stopped; None for no timeout.
        stdin: the command's standard input.

    Returns:
        The exit code (None at the timeout), and the last printed line that is not empty.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # a new group, with the id of the process
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdin and process.stdout
    lines: list[str] = []  # the printed lines

    def read(output: IO[bytes]) -> None:
        """Keep and say each line that the process prints."""
        with output:
            for line in output:
                lines.append(line.decode(errors="replace").rstrip())
                say(lines[-1])

    reader = Thread(target=read, args=(process.stdout,), daemon=True)
    reader.start()
    exit_code: int | None = None  # stays None at the timeout
    try:
        # The pipe breaks if the command ends or closes its input before it has read everything.
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(stdin)
        exit_code = process.wait(timeout_s)
    except BaseException as error:  # TimeoutExpired, or an interrupt of this process
        os.killpg(process.pid, signal.SIGTERM)  # background jobs ignore SIGINT
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also ends what the command left running
        process.wait()
        reader.join()
    last_line = next((line for line in reversed(lines) if line), "")
    return Ended(exit_code, last_line)
