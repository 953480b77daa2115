"""All tests use one thread, since the models are too small for more. Each part has a target in
make.

Torch, Triton and the Hub's client read their variables when they are imported. Without a GPU,
kernels are interpreted.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a waiting thread leaves its core to others
os.environ.setdefault("SPECBENCH_RUN_SETTINGS", "paper")  # tests must not depend on the machine
os.environ.pop("HF_HUB_OFFLINE", None)  # tests that need it set it
os.environ.pop("HF_DATASETS_OFFLINE", None)
os.environ.pop("TRANSFORMERS_OFFLINE", None)

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.report.browser import Browser, browser, missing

settings.register_profile("patient", deadline=None)  # on a busy machine an example takes longer
settings.load_profile("patient")

# A shell ignores these signals for background jobs, and every child process inherits that.
for _ending in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_ending) == signal.SIG_IGN:
        signal.signal(_ending, signal.SIG_DFL)

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


# Collect garbage rarely, since a full collection takes half a second.
gc.set_threshold(50_000, 20, 20)

PARTS = {
    "engine/kernels": "kernels",
    "packaging": "packages",
    "benchmarks": "tools",
    "tools": "tools",
    "training": "tools",
}
"""Folder -> marker of its tests, which `make test` leaves out."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if reason := missing():
        pytest.skip(reason)
    with browser() as opened:
        yield opened


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for test in items:
        folder = test.path.parent.relative_to(Path(__file__).parent).as_posix()
        for beginning, marker in PARTS.items():
            if f"{folder}/".startswith(f"{beginning}/"):
                test.add_marker(marker)
