"""Triton kernel of a linear layer over 2 to 64 rows: tensor cores, every weight read once.

`kernels.triton_products` launches it; `kernels.triton_kernels` explains how a kernel begins early.

In the tensor cores' product, rows are rows of the weight and columns are tokens, at least 16.
The input size may be split among programs. Each stores its sums, and the last one to finish
adds the sums of all splits in order, so no result depends on which one is last.
"""

import triton
import triton.language as tl

from specbench.engine.kernels.triton_kernels import activated, follow

LINE_BITS = tl.constexpr(1024)
"""Bits of a line of the L2 cache."""


AHEAD = tl.constexpr(4)
"""Cache lines of each weight row that are fetched before the previous kernel ends."""


@triton.jit
def fetch(lines):
    """Prefetch lines at these addresses, which are 16-byte aligned, to the L2 cache."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], 128; mov.u32 $0, 0;", "=r,l",
        [lines.to(tl.int64, bitcast=True)], tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def project_few(
    x, weight, bias, out, parts, arrivals, n, num_out, size, split_size, x_stride,
    HAS_BIAS: tl.constexpr, IS_ADDED: tl.constexpr, IS_GATED: tl.constexpr, IS_GELU: tl.constexpr,
    IS_SPLIT: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Product of x [n, size] and ROWS rows of weight [num_out, size], stored in or added to `out`.

    If gated, weight is [2 * num_out, size] and the result act(first half) * second half; a
    program alternates rows of both halves. Weights are loaded through STAGES buffers. `parts`
    has room for the sums of every program. `arrivals` holds one number per tile, zero before
    and after.
    """
    rows = _weight_rows(num_out, ROWS, IS_GATED)
    begin = tl.program_id(1) * split_size
    end = tl.minimum(begin + split_size, size)
    tokens, columns = tl.arange(0, TOKENS), tl.arange(0, BLOCK)
    lines = weight + rows.to(tl.int64)[:, None] * size
    if EARLY:
        step: tl.constexpr = LINE_BITS // weight.dtype.element_ty.primitive_bitwidth
        fetch(lines + tl.minimum(begin + tl.arange(0, AHEAD) * step, size - step)[None, :])
    follow(EARLY)
    places = lines + columns[None, :]
    sources = x + tokens.to(tl.int64)[:, None] * x_stride + columns[None, :]
    sums = tl.zeros([ROWS, TOKENS], tl.float32)
    for at in tl.range(begin, end, BLOCK, num_stages=STAGES):
        is_in = at + columns < end
        values = tl.load(sources + at, mask=(tokens < n)[:, None] & is_in[None, :], other=0.0)
        part = tl.load(places + at, mask=is_in[None, :], other=0.0)
        sums = tl.dot(part, tl.trans(values), sums, input_precision="ieee")
    is_last = True
    if IS_SPLIT:
        is_last = _leave(sums, parts, arrivals)
        if is_last:
            sums = _gather(parts, ROWS, TOKENS)
    if is_last:
        _finish(sums, bias, out, n, num_out, HAS_BIAS, IS_ADDED, IS_GATED, IS_GELU)


@triton.jit
def _weight_rows(num_out, ROWS: tl.constexpr, IS_GATED: tl.constexpr):
    """Rows of the weight that this program reads; the last one replaces rows beyond the end."""
    rows = tl.arange(0, ROWS)
    if IS_GATED:
        kept = tl.minimum(tl.program_id(0) * (ROWS // 2) + rows // 2, num_out - 1)
        return kept + rows % 2 * num_out
    return tl.minimum(tl.program_id(0) * ROWS + rows, num_out - 1)


@triton.jit
def _part(parts, split, ROWS: tl.constexpr, TOKENS: tl.constexpr):
    """Memory for the sums of a split of this program's tile."""
    width: tl.constexpr = ROWS * TOKENS
    return parts + (tl.program_id(0) * tl.num_programs(1) + split).to(tl.int64) * width


@triton.jit
def _leave(sums, parts, arrivals):
    """Store this program's sums; True if all other splits have stored theirs."""
    ROWS: tl.constexpr = sums.shape[0]
    TOKENS: tl.constexpr = sums.shape[1]
    own = _part(parts, tl.program_id(1), ROWS, TOKENS)
    tokens = tl.arange(0, TOKENS)
    tl.store(own + tl.arange(0, ROWS)[:, None] * TOKENS + tokens[None, :], sums)
    tl.debug_barrier()  # one thread reports the stores of all
    arrival = arrivals + tl.program_id(0)
    is_last = tl.atomic_add(arrival, 1) == tl.num_programs(1) - 1
    tl.store(arrival, 0, mask=is_last)
    return is_last


@triton.jit
def _gather(parts, ROWS: tl.constexpr, TOKENS: tl.constexpr):
    """Sums of all splits of this program's tile, read past L1 because other programs wrote them."""
    tokens = tl.arange(0, TOKENS)
    inside = tl.arange(0, ROWS)[:, None] * TOKENS + tokens[None, :]
    sums = tl.zeros([ROWS, TOKENS], tl.float32)
    for split in range(tl.num_programs(1)):
        part = _part(parts, split, ROWS, TOKENS)
        sums += tl.load(part + inside, cache_modifier=".cg")
    return sums


@triton.jit
def _finish(
    sums, bias, out, n, num_out,
    HAS_BIAS: tl.constexpr, IS_ADDED: tl.constexpr, IS_GATED: tl.constexpr, IS_GELU: tl.constexpr,
):  # fmt: skip
    """Apply bias, gate and residual to sums [rows, tokens], and store them by token."""
    ROWS: tl.constexpr = sums.shape[0]
    TOKENS: tl.constexpr = sums.shape[1]
    WIDTH: tl.constexpr = ROWS // 2 if IS_GATED else ROWS
    if HAS_BIAS:
        sums += tl.load(bias + _weight_rows(num_out, ROWS, IS_GATED)).to(tl.float32)[:, None]
    if IS_GATED:
        gate, up = tl.split(tl.permute(tl.reshape(sums, [WIDTH, 2, TOKENS]), (0, 2, 1)))
        found = activated(gate, IS_GELU) * up
    else:
        found = sums
    rows, tokens = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), tl.arange(0, TOKENS)
    places = out + tokens.to(tl.int64)[None, :] * num_out + rows[:, None]
    is_kept = (rows < num_out)[:, None] & (tokens < n)[None, :]
    if IS_ADDED:
        found += tl.load(places, mask=is_kept, other=0.0).to(tl.float32)
    tl.store(places, found, mask=is_kept)
