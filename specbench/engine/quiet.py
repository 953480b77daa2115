"""Silence transformers' warnings while our own checks follow."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' warnings while it reads files, since our own checks refuse bad files with
    a reason. A verbosity other than the default is kept.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    if verbosity == logging.WARNING:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
