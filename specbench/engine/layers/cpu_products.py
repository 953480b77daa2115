"""Linear layers over few rows on a CPU, as one product for each thread."""

from __future__ import annotations

import torch
from torch import Tensor


def num_parts_of(x: Tensor, weight: Tensor) -> int:
    """Number of parts for which a product is fastest: on a CPU with few rows, one per thread.

    There, BLAS uses one core for a single row and distributes few rows badly. A part is worth
    a thread from about 30,000 weights.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.shape[0] > 64:
        return 1
    num_parts = min(torch.get_num_threads(), weight.numel() >> 15)
    while num_parts > 1 and weight.shape[0] % num_parts:
        num_parts -= 1
    return max(num_parts, 1)


def in_parts(x: Tensor, weight: Tensor, bias: Tensor | None, num_parts: int) -> Tensor:
    """A linear layer over x [n, input], with the weight's rows split into parallel products."""
    parts = weight.unflatten(0, (num_parts, -1)).mT
    out = torch.bmm(x.expand(num_parts, *x.shape), parts)
    out = out.transpose(0, 1).reshape(x.shape[0], -1)
    return out if bias is None else out.add_(bias)
