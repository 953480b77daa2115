"""A program that keeps the processor busy beside a measurement."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen

TWO_THREADS = (
    "import torch\ntorch.set_num_threads(2)\na = torch.randn(1000, 1000)\nwhile True: a @ a"
)
"""A program with two busy threads."""
ALL_CORES = "import torch; a = torch.rand(512, 512)\nwhile True: a = torch.tanh(a @ a)"
"""A program that keeps all cores busy."""
SETTLE_S = 2.0
"""Seconds until the program has started."""


@contextmanager
def neighbour(is_busy: bool, program: str) -> Iterator[None]:
    """If `is_busy`, run the Python code `program` in another process during the block."""
    if not is_busy:
        yield
        return
    process = Popen([sys.executable, "-c", program])
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        process.kill()
        process.wait()
