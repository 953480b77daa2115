"""Choose how the CPU threads of torch's operations wait, and how many there may be.

The module does not import torch, whose thread pool reads the environment when it is loaded.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Literal

Waiting = Literal["brief", "passive", "own", "unknown"]

_BRIEF = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
"""Variables for a short wait, in loops (GNU's OpenMP) or milliseconds (LLVM's and Intel's).

A step's operations follow each other within microseconds, so a thread that sleeps at once would
wake too late for each of them.
"""
_WAITING_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
_NUMBER_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def wait_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads that wait for work spin briefly, then sleep, unless the user chose otherwise.

    With other work on the machine, a thread that spins for long takes the core from the thread
    that it waits for. OpenMP reads the variables when torch is imported, so this does nothing
    after that.
    """
    if "torch" not in sys.modules and not any(name in environment for name in _WAITING_VARIABLES):
        environment.update(_BRIEF)


def without_waiting(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for other programs, without the variables that `wait_briefly` has set."""
    if waiting(environment) != "brief":
        return dict(environment)
    return {name: setting for name, setting in environment.items() if name not in _BRIEF}


def waiting(environment: Mapping[str, str] = os.environ) -> Waiting:
    """The wait policy of threads: brief, passive, set by the user ("own"), or unknown.

    Unknown means that torch was imported before `wait_briefly` was called.
    """
    if environment.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        return "passive"
    if all(environment.get(name) == setting for name, setting in _BRIEF.items()):
        return "brief"
    return "own" if any(name in environment for name in _WAITING_VARIABLES) else "unknown"


def is_number_given() -> bool:
    """True if the environment sets the number of threads."""
    return any(name in os.environ for name in _NUMBER_VARIABLES)


def thread_counts() -> list[int]:
    """The numbers of threads worth trying: powers of two, and the numbers of physical cores and of
    logical processors that this process may use.
    """
    import psutil

    num_usable = usable_threads() or 1
    powers_of_two = {2**i for i in range(num_usable.bit_length())}
    num_cores = min(num_usable, psutil.cpu_count(logical=False) or num_usable)
    return sorted(powers_of_two | {num_cores, num_usable}, reverse=True)


def usable_threads() -> int | None:
    """The number of logical processors that this process may use, or None if it is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
