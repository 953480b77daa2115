"""Triton kernel that multiplies few rows by their experts' weights, and reads no other weights.

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
    """Multiply ROWS rows of an expert's weight with a row of x, for one pair of row and expert.

    x is [pairs / x_group, size], and `weight` is [experts, num_out, size]. If gated, `weight` is
    [experts, 2 * num_out, size], and the result is silu(first half) * second half. If clamped, the
    rows of the two halves alternate, and the result is as in `Clamp`. The result is multiplied by
    the pair's share, if shares are given.
    """
    pair = tl.program_id(1).to(tl.int64)
    first_row = tl.program_id(0) * ROWS
    rows = (first_row + tl.arange(0, ROWS)).to(tl.int64)  # [ROWS] of the output
    columns = tl.arange(0, BLOCK)
    is_row = rows < num_out
    expert_rows = num_out.to(tl.int64) * (2 if IS_GATED else 1)
    gate_rows = rows * 2 if IS_CLAMPED else rows
    to_up = 1 if IS_CLAMPED else num_out.to(tl.int64)  # from a row of the gate to the row of up
    follow(EARLY)
    expert = tl.load(ids + pair)
    gate_starts = weight + (expert * expert_rows + gate_rows[:, None]) * size  # [ROWS, 1]
    gate_places = gate_starts + columns[None, :]  # [ROWS, BLOCK]
    x_row = pair // x_group
    x_places = x + x_row * size + columns  # [BLOCK]
    gate_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    up_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, size, BLOCK):
        is_in = begin + columns < size
        mask = is_row[:, None] & is_in[None, :]
        x_block = tl.load(x_places + begin, mask=is_in, other=0.0)
        x_block = x_block.to(tl.float32)[None, :]
        gate_block = tl.load(gate_places + begin, mask=mask, other=0.0)  # [ROWS, BLOCK]
        gate_sums += gate_block.to(tl.float32) * x_block
        if IS_GATED:
            up_places = gate_places + to_up * size
            up_block = tl.load(up_places + begin, mask=mask, other=0.0)
            up_sums += up_block.to(tl.float32) * x_block
    results = tl.sum(gate_sums, 1)  # [ROWS] the gate, or the result if it is not gated
    up = tl.sum(up_sums, 1)
    if HAS_BIAS:
        bias_places = bias + expert * expert_rows + gate_rows
        gate_bias = tl.load(bias_places, mask=is_row, other=0.0)
        results += gate_bias.to(tl.float32)
        if IS_GATED:
            up_bias = tl.load(bias_places + to_up, mask=is_row, other=0.0)
            up += up_bias.to(tl.float32)
    if IS_CLAMPED:  # (up + 1) * gate * sigmoid(alpha * gate)
        results = tl.minimum(results, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        results = results * tl.sigmoid(alpha * results) * (up + 1.0)
    elif IS_GATED:  # silu(gate) * up
        results = results * tl.sigmoid(results) * up
    if HAS_SHARES:
        share = tl.load(shares + pair)
        results *= share.to(tl.float32)
    tl.store(out + pair * num_out + rows, results, mask=is_row)
