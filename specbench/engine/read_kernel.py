"""A Triton kernel that reads memory once and does nothing else, to measure its bandwidth."""

import torch
import triton
import triton.language as tl
from torch import Tensor

READ_BLOCK = 4096
"""Integers that each program reads."""


@triton.jit
def sum_block(values, sums, size, BLOCK: tl.constexpr):
    """The sum of BLOCK of the integers [size]."""
    program = tl.program_id(0).to(tl.int64)
    places = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + program, tl.sum(tl.load(values + places, mask=places < size, other=0)))


def block_sums(values: Tensor) -> Tensor:
    """The sums of each READ_BLOCK of the integers [size]: all are read, little is written."""
    num_blocks = triton.cdiv(len(values), READ_BLOCK)
    sums = torch.empty(num_blocks, dtype=values.dtype, device=values.device)
    sum_block[num_blocks,](values, sums, len(values), READ_BLOCK, num_warps=8)
    return sums
