"""One thread for all tests: the models are too small for more. Coverage where it counts.

Torch and Triton read their variables as they are imported. Where there is no GPU, kernels are
interpreted.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a thread that waits leaves its core to others

import signal
from pathlib import Path

import pytest
import torch

# A shell that runs the tests in the background ignores these, and every child inherits it.
for _ending in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_ending) == signal.SIG_IGN:
        signal.signal(_ending, signal.SIG_DFL)

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


COVERING = ("analysis", "contract", "engine", "log", "methods")
"""Folders whose tests are traced for branch coverage. Tracing doubles the time of a test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trace only the tests of the rooms with a threshold, which have to cover them."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] not in COVERING:
            item.add_marker(pytest.mark.no_cover)
