"""Wait for the end of other processes."""

import time
from collections.abc import Callable

import psutil


def wait_until(is_true: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not is_true() and time.monotonic() < end:
        time.sleep(0.02)
    return is_true()


def are_gone(*pids: int) -> bool:
    """Return whether none of these processes runs."""

    def is_gone(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(map(is_gone, pids))
