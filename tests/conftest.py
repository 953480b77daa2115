"""One thread for all tests: the models are so small that more would only wait for each other.

Where there is no GPU, kernels are interpreted; Triton reads the variable as it is imported.
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
