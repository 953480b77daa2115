"""One thread for all tests: the models are too small for more. Coverage where it counts.

Torch and Triton read their variables as they are imported. Where there is no GPU, kernels are
interpreted.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a thread that waits leaves its core to others

import gc
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


# A search for garbage through all that the modules have made takes half a second.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


COVERING = (
    "analysis/", "engine/", "log/", "methods/",
    "audit/test_white_box.py", "contract/test_kit.py", "run/test_warm_up.py",
)  # fmt: skip
"""Beginnings of the files whose tests have to cover the rooms with a threshold."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all other tests untraced, since tracing doubles the time of a test."""
    here = Path(__file__).parent
    for item in items:
        if not item.path.relative_to(here).as_posix().startswith(COVERING):
            item.add_marker(pytest.mark.no_cover)
