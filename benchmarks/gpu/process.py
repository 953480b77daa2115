"""Run a command with a time limit; all processes that it started end with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
"""The checkout; every part runs in it."""


def run_limited(command: Sequence[str], log: Path, *, limit_s: float, running: Path) -> int | None:
    """Run a command with its output in `log`; returns its exit status, None past the limit.

    The command leads a process group, which is killed when the command ends, reaches its limit or
    this process is interrupted. Meanwhile, `running` names the group for `end_leftover`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"}, process_group=0,
        )  # fmt: skip
    try:
        started = psutil.Process(process.pid).create_time()
        running.write_text(json.dumps({"pid": process.pid, "started": started}), "utf-8")
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill_group(process.pid)
        process.wait()
        running.unlink(missing_ok=True)


def end_leftover(running: Path) -> None:
    """Kill the command that an earlier process was running when it was killed itself."""
    if not running.exists():
        return
    with suppress(psutil.NoSuchProcess, ValueError, KeyError):
        found = json.loads(running.read_text("utf-8"))
        if psutil.Process(found["pid"]).create_time() == found["started"]:
            _kill_group(found["pid"])
    running.unlink(missing_ok=True)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
