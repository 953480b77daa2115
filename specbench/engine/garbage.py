"""Python's garbage collector, which looks for cycles of objects whenever many were made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause the collector while the block runs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def lasting_objects() -> Iterator[None]:
    """Pause the collector while the block runs, and never search what it made, which lasts:
    the modules of libraries. That is a fifth of the time in which they are imported.
    """
    with no_garbage_collection():
        yield
        gc.freeze()
