"""transformers without its warnings, while our own checks follow."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide what transformers warns of while it reads files: a check of ours refuses them with the
    reason, or they are good. A verbosity other than the default stays.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    if verbosity == logging.WARNING:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
