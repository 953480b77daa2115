"""A Triton kernel that reads memory once and does nothing else, to measure its bandwidth."""

import torch
import triton
import triton.language as tl
from torch import Tensor

READ_BLOCK = 4096
"""Number of integers that each program reads."""


@triton.jit
def sum_block(values, sums, size, BLOCK: tl.constexpr):
    """Store the sum of a block of BLOCK integers of `values` [size] in `sums`."""
    program = tl.program_id(0).to(tl.int64)
    places = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + program, tl.sum(tl.load(values + places, mask=places < size, other=0)))


def block_sums(values: Tensor) -> Tensor:
    """The sum of each block of READ_BLOCK integers in `values` [size].

    This reads all of the memory and writes very little.
    """
    num_blocks = triton.cdiv(len(values), READ_BLOCK)
    sums = torch.empty(num_blocks, dtype=values.dtype, device=values.device)
    sum_block[num_blocks,](values, sums, len(values), READ_BLOCK, num_warps=8)
    return sums
