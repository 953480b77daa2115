"""Weights and caches in huge pages of memory, which a CPU reads faster."""

import ctypes
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor, nn

HUGE = 2**21
"""Bytes of a huge page on x86; where pages are larger, the memory is aligned to less."""
_ALIGNED = 64
"""Each weight begins at a multiple of this number of bytes, as torch's own memory does."""


def move(model: nn.Module) -> None:
    """Move the matrices of a model, in their order, into one block of memory of huge pages.

    Each old matrix is freed before the next is moved. Matrices that are not plain tensors of a
    CPU (quantised ones) stay, and all do where the system gives no huge pages on demand.
    """
    shared: dict[int, list[nn.Parameter]] = {}
    for weight in model.parameters():
        is_plain = type(weight) is nn.Parameter and weight.is_floating_point() and weight.ndim == 2
        if is_plain and weight.device.type == "cpu" and weight.is_contiguous():
            shared.setdefault(weight.data_ptr(), []).append(weight)
    starts = [0]
    for first, *_ in shared.values():
        starts.append(starts[-1] + -(-first.nbytes // _ALIGNED) * _ALIGNED)
    if starts[-1] < HUGE or (block := huge_block(starts[-1])) is None:
        return
    for start, weights in zip(starts, shared.values(), strict=False):
        place = block[start : start + weights[0].nbytes].view(weights[0].dtype)
        moved = place.view(weights[0].shape).copy_(weights[0].data)
        for weight in weights:
            weight.data = moved


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros`, in huge pages of a CPU's memory where it takes several and there are any."""
    size = math.prod(shape) * dtype.itemsize
    block = huge_block(size) if device.type == "cpu" and size >= HUGE else None
    if block is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return block.view(dtype).view(shape).zero_()


def huge_block(size: int) -> Tensor | None:
    """Memory [size] in bytes of huge pages; None where the system gives none on demand."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return None
    block = torch.empty(size + HUGE, dtype=torch.uint8)
    begin = -block.data_ptr() % HUGE
    whole = size // HUGE * HUGE
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.madvise(
        ctypes.c_void_p(block.data_ptr() + begin), ctypes.c_size_t(whole), ctypes.c_int(advice)
    )
    return None if failed else block[begin : begin + size]
