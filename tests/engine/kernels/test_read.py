"""The kernel that measures a GPU's bandwidth. Without a GPU, Triton's interpreter runs it."""

import pytest
import torch

from specbench.machine.bandwidth import _reader
from tests.support.devices import DEVICE

pytest.importorskip("triton", reason="triton is not installed")

from specbench.engine import read_kernel
from specbench.engine.read_kernel import READ_BLOCK, block_sums


@pytest.mark.parametrize("size", [1, READ_BLOCK, 3 * READ_BLOCK + 5])
def test_a_gpus_kernel_reads_every_number(size: int) -> None:
    values = torch.arange(1, size + 1, device=DEVICE)
    expected = [part.sum() for part in values.split(READ_BLOCK)]
    assert block_sums(values).tolist() == expected
    assert _reader(DEVICE) is block_sums


def test_a_kernel_that_leaves_numbers_out_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_kernel, "block_sums", lambda values: values[:1])
    assert _reader(DEVICE) is torch.sum
