"""A program in a pseudo-terminal of a given size, and the content of its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select

_TOKEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b.|\r|\n|[^\x1b\r\n]+")
_PATIENCE_S = 120.0


class Terminal:
    """Runs a command in a terminal that has `rows` lines."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], *, columns: int, rows: int
    ) -> None:
        self._columns, self._raw = columns, ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**inherited, "TERM": "xterm-256color", **env},
            preexec_fn=lambda: _log_in(slave),
        )
        os.close(slave)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until the terminal has shown a text."""
        deadline = time.monotonic() + _PATIENCE_S
        while text not in self._raw:
            assert time.monotonic() < deadline and self._read(), f"{text!r} not in {self._raw!r}"

    def end(self) -> int:
        """Read until the program ends; its exit code."""
        while self._read():
            pass
        os.close(self._master)
        return self._process.wait(timeout=_PATIENCE_S)

    def _read(self) -> bool:
        """Read what there is; False at the end."""
        assert select([self._master], [], [], _PATIENCE_S)[0], f"silent after {self._raw!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the program has ended
            return False
        self._raw += data.decode()
        return bool(data)

    @property
    def lines(self) -> list[str]:
        """The lines that the program left, after all that it overwrote."""
        lines, row, column = [""], 0, 0
        for token in _TOKEN.findall(self._raw):
            if token == "\r":
                column = 0
            elif token == "\n":
                row += 1
            elif token.endswith("A") and token[0] == "\x1b":
                row = max(0, row - int(token[2:-1] or 1))
            elif token.endswith("K") and token[0] == "\x1b":
                lines[row] = ""
            elif token[0] != "\x1b":
                for sign in token:
                    if column == self._columns:
                        row, column = row + 1, 0
                    lines += [""] * (row + 1 - len(lines))
                    lines[row] = lines[row].ljust(column)[:column] + sign + lines[row][column + 1 :]
                    column += 1
            lines += [""] * (row + 1 - len(lines))
        return "\n".join(line.rstrip() for line in lines).strip("\n").split("\n")


def _log_in(terminal: int) -> None:
    os.login_tty(terminal)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a suite in the background ignores it
