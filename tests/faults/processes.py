"""Processes that attacks end. Each is a fork of a process that has imported all areas."""

import multiprocessing
import os
import pkgutil
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

from tests.faults import areas

Work = Callable[..., object]
POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
"""Audit events that Python raises before a file is opened, moved or removed."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", *(f"{areas.__name__}.{area.name}" for area in pkgutil.iter_modules(areas.__path__))]
)


def start(work: Work, *arguments: object) -> BaseProcess:
    process = _CONTEXT.Process(target=work, args=arguments)
    process.start()
    return process


def finish(process: BaseProcess, *allowed: int) -> int:
    """Wait for the end of a process, and return its exit code, which must be 0 or allowed."""
    process.join(60)
    assert process.exitcode in (0, *allowed), f"the process ended with {process.exitcode}"
    return process.exitcode


def send(process: BaseProcess, how: signal.Signals, ready: Path | None, wait_s: float) -> None:
    """Send a signal to a process some time after it has made the file `ready`."""
    while ready and not ready.exists() and process.is_alive():
        time.sleep(1e-3)
    time.sleep(wait_s)
    assert process.pid
    with suppress(ProcessLookupError):  # the process has ended
        os.kill(process.pid, how)


def end(process: BaseProcess, how: signal.Signals, ready: Path | None, wait_s: float) -> int:
    """End a process by a signal, and return its exit code."""
    send(process, how, ready, wait_s)
    process.join(60)
    assert process.exitcode is not None, f"the process goes on after {how.name}"
    return process.exitcode


def kill_at_a_write(random: Random, folder: Path, work: Work, *arguments: object) -> bool:
    """Start the work and kill it at a written byte or at a change of a file.

    Return False if it ended before that.
    """
    num_bytes = random.randrange(30_000) if random.random() < 0.5 else -1
    process = start(_work_until, num_bytes, random.randrange(30), folder, work, *arguments)
    return finish(process, -signal.SIGKILL, -signal.SIGXFSZ) != 0


def _work_until(
    num_bytes: int, num_changes: int, folder: Path, work: Work, *arguments: object
) -> None:
    if num_bytes >= 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))
    num_seen = 0

    def watch(event: str, given: tuple[object, ...]) -> None:
        nonlocal num_seen
        if event in CHANGES and str(given[0]).startswith(str(folder)):
            num_seen += 1
            if num_seen > num_changes and num_bytes < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    work(*arguments)
