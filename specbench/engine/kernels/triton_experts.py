"""Triton kernel for the experts of few rows: only the weights of chosen experts are read.

`kernels.triton_ops` launches it. Sums are in float32.
"""

import triton
import triton.language as tl

from specbench.engine.kernels.triton_kernels import follow


@triton.jit
def project_experts(
    x, weight, bias, ids, shares, out, num_out, size, x_group, alpha, limit,
    IS_GATED: tl.constexpr, IS_CLAMPED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_SHARES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Product of a row of x [pairs / x_group, size] and ROWS rows of its expert's weight.

    `weight` is [experts, num_out, size], or [experts, 2 * num_out, size] and the result
    silu(first half) * second half if gated. If clamped, rows of the two halves alternate, and
    the result is as in `Clamp`. A result is multiplied by its pair's share, if given.
    """
    pair = tl.program_id(1).to(tl.int64)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_row = (rows < num_out)[:, None]
    width = num_out.to(tl.int64) * (2 if IS_GATED else 1)
    first_rows = rows * 2 if IS_CLAMPED else rows
    to_other = 1 if IS_CLAMPED else num_out.to(tl.int64)
    follow(EARLY)
    expert = tl.load(ids + pair)
    places = weight + (expert * width + first_rows[:, None]) * size + columns[None, :]
    values = x + pair // x_group * size + columns
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    other_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, size, BLOCK):
        is_in = begin + columns < size
        mask = is_row & is_in[None, :]
        x_block = tl.load(values + begin, mask=is_in, other=0.0).to(tl.float32)[None, :]
        sums += tl.load(places + begin, mask=mask, other=0.0).to(tl.float32) * x_block
        if IS_GATED:
            other = tl.load(places + to_other * size + begin, mask=mask, other=0.0)
            other_sums += other.to(tl.float32) * x_block
    results, up = tl.sum(sums, 1), tl.sum(other_sums, 1)
    if HAS_BIAS:
        biases = bias + expert * width + first_rows
        results += tl.load(biases, mask=rows < num_out, other=0.0).to(tl.float32)
        if IS_GATED:
            up += tl.load(biases + to_other, mask=rows < num_out, other=0.0).to(tl.float32)
    if IS_CLAMPED:
        results = tl.minimum(results, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        results = results * tl.sigmoid(alpha * results) * (up + 1.0)
    elif IS_GATED:
        results = results * tl.sigmoid(results) * up
    if HAS_SHARES:
        results *= tl.load(shares + pair).to(tl.float32)
    tl.store(out + pair * num_out + rows, results, mask=rows < num_out)
