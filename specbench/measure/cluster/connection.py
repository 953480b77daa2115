"""Connect this process to Ray, or give the reason why it cannot be reached."""

import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specbench.errors import UserError, reason_of

REACH_S = 10.0
"""Seconds to wait for the head of a cluster to answer."""
_HOW_TO_REACH = (
    "Start it with `ray start --head`, give its address (--ray HOST:PORT), or use --ray local."
)
_BUSY = (
    "Try again when the machine is less busy: Ray ends if its processes do not start within 15 s. "
    "/tmp/ray/session_latest/logs has the reason."
)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module `ray`, connected to a cluster until the block ends.

    `address` is "local" to start Ray on this machine, "auto" for the cluster that runs on this
    machine already, else the address of a cluster's head, such as "10.0.0.1:6379".

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """
    sigterm_handler = signal.getsignal(signal.SIGTERM)
    if address == "local" and "ray" not in sys.modules:
        _prepare_local_ray()  # sets the variables that Ray reads at its import
    try:
        import ray

        if address not in ("local", "auto"):
            _reach_head(address)  # raises at once if nothing answers; Ray would try for minutes
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,  # None: Ray decides
            log_to_driver=False,
            logging_level="ERROR",
        )
    except ImportError as error:
        raise UserError(
            "--ray needs Ray, which is not installed.",
            'Install it: pip install "ray[default]>=2.40".',
        ) from error
    except Exception as error:  # Ray has no class of its own for a failed connection
        raise _connection_error(address, error) from error  # a UserError with the reason
    finally:
        signal.signal(signal.SIGTERM, sigterm_handler)  # Ray's handler would end the process
    try:
        yield ray
    finally:
        ray.shutdown()


def _prepare_local_ray() -> None:
    """Set the variables that Ray reads when it is imported.

    Workers get the niceness of this process. Ray's default would add 15. Ray's ports are open to
    the network, so the run draws a token that keeps others out (in Ray 2.52 or newer).
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _reach_head(address: str) -> None:
    """Raise OSError or ValueError at once if no head answers: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        raise ValueError("it is not an address")
    socket.create_connection((host, int(port)), timeout=REACH_S).close()


def _connection_error(address: str, error: Exception) -> UserError:
    """The error for a cluster that cannot be reached, with the problem, its reason and a hint.

    `address` is "auto", "local" or the address of a cluster's head, HOST:PORT. `error` was raised
    by Ray or by the connection to the head; its first line is the reason.
    """
    problem = f"The Ray cluster at {address} cannot be reached"
    hint = _HOW_TO_REACH
    if address == "auto":
        problem = "No Ray cluster runs on this machine"
    elif address == "local":
        problem = "Ray did not start on this machine"
        hint = _BUSY
    return UserError(f"{problem}: {reason_of(error).rstrip('.')}.", hint)
