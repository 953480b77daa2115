"""Context managers that limit the time and memory of foreign code, and turn its errors into
messages for users.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from specbench.errors.kinds import CheckpointError, MethodFault, SpecbenchError, UserError
from specbench.errors.reasons import describe_fault, reason_of


class _TimedOut(BaseException):
    """Raised when the time is up. It is not an Exception, so that the interrupted code does not
    catch it.
    """


@contextmanager
def time_limit(seconds: float, what: str, hint: str = "") -> Iterator[None]:
    """Interrupt the block if it takes longer than `seconds`.

    Only the main thread can be interrupted, on systems with SIGALRM. Elsewhere there is no limit.

    Raises:
        UserError: `what` took longer.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise _TimedOut

    outer_handler = signal.signal(signal.SIGALRM, interrupt)
    # The timer fires again each second, for code that catches everything.
    outer_timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    except _TimedOut:
        raise UserError(f"{what} took longer than {seconds:g} s.", hint) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer_handler)
        signal.setitimer(signal.ITIMER_REAL, *outer_timer)


@contextmanager
def memory_limit(more_bytes: int) -> Iterator[None]:
    """Raise MemoryError if the block asks for more than `more_bytes` of memory. Works only on
    Linux.
    """
    try:
        import resource

        statm = Path("/proc/self/statm").read_text(encoding="ascii")
    except (ImportError, OSError):
        yield
        return
    bytes_in_use = int(statm.split()[0]) * resource.getpagesize()
    outer_bounds = resource.getrlimit(resource.RLIMIT_AS)
    finite_bounds = [bound for bound in outer_bounds if bound != resource.RLIM_INFINITY]
    soft_bound = min([bytes_in_use + more_bytes, *finite_bounds])
    _, hard_bound = outer_bounds
    resource.setrlimit(resource.RLIMIT_AS, (soft_bound, hard_bound))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, outer_bounds)


@contextmanager
def containing(what: str) -> Iterator[None]:
    """Turn any exception of a method's code into a MethodFault that names `what` and the cause.

    Errors that address users, and Ctrl-C, pass unchanged.
    """
    try:
        yield
    except (SpecbenchError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a plug-in can raise anything, and exit
        raise MethodFault(f"{what}: {describe_fault(error)}") from error


@contextmanager
def os_errors(what: str, hint: str = "", kind: type[UserError] = UserError) -> Iterator[None]:
    """Turn an error of the system into an error for users that says `what` and the reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}.", hint) from error


@contextmanager
def reading(file: Path, what: str, hint: str) -> Iterator[None]:
    """Turn any failure to read a file into a CheckpointError that names the file and the reason.

    A damaged or hostile file makes libraries raise exceptions of any type.
    """
    try:
        yield
    except SpecbenchError:
        raise
    except Exception as error:
        reason = "not enough memory" if isinstance(error, MemoryError) else reason_of(error)
        raise CheckpointError(f"{what}: {file} cannot be read: {reason}", hint) from error
