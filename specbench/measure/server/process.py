"""Start the process of a server, keep its log, and end it."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from specbench.errors import printable
from specbench.machine.threads import without_waiting

END_S = 30.0
"""Seconds that the keeper may take to end a server. Then the keeper is killed."""
_KEEPER = Path(__file__).with_name("keeper.py")
_NUM_LINES_SHOWN = 5
"""Number of the last lines of a log that a message shows."""
_MOST_BYTES_SHOWN = 64 * 2**10
"""The most bytes of a log that are read to find these lines."""


class ServerProcess:
    """A running command, and a keeper that ends the command whatever happens to this program.

    The command gets this process's environment variables, except those that specbench set for its
    threads, and also those in `variables` that are not set. Its output is appended to `log`.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        """Write the command, whose words are `command`, to the log, and start it."""
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"$ {' '.join(command)}\n".encode())
            self._output_start = file.tell()  # bytes of the log before the command's output
        self._keeper = subprocess.Popen(
            [sys.executable, str(_KEEPER), str(log), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**variables, **without_waiting()},
            start_new_session=True,  # Ctrl-C reaches only this program, which then ends the server
        )

    @property
    def process_id(self) -> int:
        """The id of the command's process, or of the keeper's if the command has ended."""
        with suppress(psutil.Error):
            for child in psutil.Process(self._keeper.pid).children():
                return child.pid
        return self._keeper.pid

    def stop(self) -> None:
        """End the server and everything that it started."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()  # the keeper then ends the command
        try:
            self._keeper.wait(END_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()

    def last_lines(self) -> str:
        """The last _NUM_LINES_SHOWN lines of the command's output, joined into one text."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._output_start, size - _MOST_BYTES_SHOWN))
            lines = file.read().decode("utf-8", "replace").splitlines()
        lines_with_text = [printable(line.strip()) for line in lines if line.strip()]
        return " | ".join(lines_with_text[-_NUM_LINES_SHOWN:]) or "it printed nothing"

    def death(self, when: str = "") -> str:
        """A sentence for a message about how the command ended. Empty while it runs.

        `when` follows the status in the message, such as " while it started".
        """
        status = self._keeper.poll()
        if status is None:
            return ""
        return f"The engine ended with status {status}{when}. Its last lines: {self.last_lines()}"


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
