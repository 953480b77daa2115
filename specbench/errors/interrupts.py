"""Keep interrupts that arrive in a finalizer. Python drops exceptions raised in finalizers, so the
interrupt is sent again.

A finalizer is a `__del__`, the callback of a weak reference or of the garbage collector, or a
callback from C.
"""

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_AGAIN = signal.SIGURG
"""The signal that sends an interrupt again. Without a handler, it does nothing."""
_MOMENT_S = 0.01


class _SendAgain:
    """A `sys.unraisablehook` that sends an interrupt again a moment after Python dropped it."""

    def __init__(self) -> None:
        self.outer = sys.unraisablehook
        self.num_dropped = 0

    def __call__(self, dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            self.outer(dropped)
            return
        self.num_dropped += 1
        signal.signal(_AGAIN, signal.default_int_handler)
        _thread.start_new_thread(_interrupt_soon, ())


def _interrupt_soon() -> None:
    time.sleep(_MOMENT_S)
    signal.pthread_kill(threading.main_thread().ident or 0, _AGAIN)


def send_dropped_interrupts() -> None:
    """From now on, send an interrupt again if Python drops it in a finalizer."""
    if not isinstance(sys.unraisablehook, _SendAgain):
        sys.unraisablehook = _SendAgain()


@contextmanager
def lasting_interrupts() -> Iterator[None]:
    """End the block with KeyboardInterrupt if it is interrupted, even in a finalizer.

    This also holds if the program exits with 0 before the interrupt is sent again.
    """
    outer_hook, outer_handler = sys.unraisablehook, signal.getsignal(_AGAIN)
    hook = _SendAgain()
    sys.unraisablehook = hook
    try:
        try:
            yield
        except SystemExit as end:
            if end.code or not hook.num_dropped:
                raise
        if hook.num_dropped:
            raise KeyboardInterrupt
    finally:
        sys.unraisablehook = outer_hook
        signal.signal(_AGAIN, outer_handler)


def is_interrupt(error: BaseException | None) -> bool:
    """True for KeyboardInterrupt, and for an error that a library raised because of one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
