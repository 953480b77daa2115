"""Hide the messages of libraries while the API works."""

from __future__ import annotations

import logging as python_logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide the progress bars of transformers and the Hub's client in the block.

    Messages of torchao about missing kernels are hidden too.
    """
    with ExitStack() as restore:
        for name in ("torchao", "torch.utils._pytree"):
            logger = python_logging.getLogger(name)
            restore.callback(logger.setLevel, logger.level)
            logger.setLevel(python_logging.ERROR)
        from transformers.utils import logging

        if logging.is_progress_bar_enabled():
            restore.callback(logging.enable_progress_bar)
        logging.disable_progress_bar()  # also the Hub's bars
        yield
