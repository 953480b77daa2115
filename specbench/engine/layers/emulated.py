"""Products in bfloat16 on CPUs that lack its instructions, where torch takes ten times as long."""

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import linear

LEAST_ROWS = 16
"""Smallest number of rows for which it is faster to convert the weights to float32 first."""


def is_emulated(x: Tensor) -> bool:
    """True if x is on a CPU on which float32 is several times as fast as the type of x."""
    return x.dtype == torch.bfloat16 and x.device.type == "cpu" and emulates_bfloat16()


@cache
def emulates_bfloat16() -> bool:
    """True on CPUs without AVX-512 or the like: AMD before Zen 4, most Intel desktop CPUs."""
    has_mkldnn = torch.backends.mkldnn.is_available()
    return not (has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Torch's `linear` over x [n, input], computed in float32 if that is faster."""
    if len(x) < LEAST_ROWS or not is_emulated(x):
        return linear(x, weight, bias)
    bias = None if bias is None else bias.float()
    return linear(x.float(), weight.float(), bias).to(x.dtype)
