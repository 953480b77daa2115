"""Put weights and caches into huge pages of memory, which a CPU reads faster."""

import ctypes
import math
import mmap
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

HUGE = 2**21
"""Bytes of a huge page on x86. Memory is aligned to this number even if huge pages are larger."""
_ALIGNED = 64
"""Each weight begins at a multiple of this number of bytes, as torch's own memory does."""


def move(model: nn.Module) -> None:
    """Move the matrices of a model, in their order, into one block of huge pages.

    Each old matrix is freed before the next one is moved. Matrices that are not plain tensors on a
    CPU, such as quantised weights, stay where they are. If the system gives no
    huge pages on demand, no matrix moves.
    """
    shared: dict[int, list[nn.Parameter]] = {}  # by address
    for weight in model.parameters():
        is_plain = type(weight) is nn.Parameter and weight.is_floating_point() and weight.ndim == 2
        if is_plain and weight.device.type == "cpu" and weight.is_contiguous():
            shared.setdefault(weight.data_ptr(), []).append(weight)
    sizes = [math.ceil(weights[0].nbytes / _ALIGNED) * _ALIGNED for weights in shared.values()]
    *starts, size = accumulate(sizes, initial=0)
    if size < HUGE or (block := huge_block(size)) is None:
        return
    for start, weights in zip(starts, shared.values(), strict=True):
        matrix = weights[0].data
        memory = block[start : start + matrix.nbytes].view(matrix.dtype)
        moved = memory.view(matrix.shape).copy_(matrix)
        for weight in weights:
            weight.data = moved


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Do the same as `torch.zeros`, but on a CPU use huge pages for large tensors if possible."""
    size = math.prod(shape) * dtype.itemsize
    block = huge_block(size) if device.type == "cpu" and size >= HUGE else None
    if block is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return block.view(dtype).view(shape).zero_()


def huge_block(size: int) -> Tensor | None:
    """A block of `size` bytes in huge pages, or None if the system gives none on demand."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return None
    block = torch.empty(size + HUGE, dtype=torch.uint8)
    begin = -block.data_ptr() % HUGE
    address = ctypes.c_void_p(block.data_ptr() + begin)
    whole_pages = ctypes.c_size_t(size // HUGE * HUGE)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.madvise(address, whole_pages, ctypes.c_int(advice))
    return None if failed else block[begin : begin + size]
