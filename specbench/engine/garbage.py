"""Pause Python's garbage collector, which otherwise runs at unpredictable times."""

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
    """Pause the collector while the block imports libraries, and exempt their objects for good.

    Modules are never freed, so a search of them finds nothing, but would take a fifth of the
    import's time.
    """
    with no_garbage_collection():
        yield
        gc.freeze()
