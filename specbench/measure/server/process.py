"""A server's process: started under a keeper that ends it whatever happens to this program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from specbench.errors import printable
from specbench.machine.threads import without_waiting

END_S = 30.0
"""Seconds that the keeper has to end a server."""
_KEEPER = Path(__file__).with_name("keeper.py")
_NUM_LINES, _MOST_BYTES = 5, 64 * 2**10


class ServerProcess:
    """A running command. Its output goes to `log`."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str], log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"$ {' '.join(command)}\n".encode())
            self._start = file.tell()
        self._keeper = subprocess.Popen(
            [sys.executable, str(_KEEPER), str(log), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**settings, **without_waiting()},
            start_new_session=True,  # Ctrl-C is for this program, which then ends the server
        )

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._keeper.poll()

    def stop(self) -> None:
        """End the server and everything that it started."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(END_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()

    def last_lines(self) -> str:
        """The last lines of its output, as one text."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, size - _MOST_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        kept = [printable(line.strip()) for line in lines if line.strip()]
        return " | ".join(kept[-_NUM_LINES:]) or "it printed nothing"


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
