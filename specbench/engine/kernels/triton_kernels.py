"""Triton kernels of decoder layers for few rows. Each weight and each cached key is read once.

`kernels.triton_ops` launches them. Sums are in float32, and a result is rounded once.

With EARLY, a kernel begins while the previous kernel ends (programmatic dependent launch). Before
it calls `follow`, it reads only weights and writes nothing. `follow` waits for the previous kernel,
which has waited for its own predecessor. So all earlier results are available afterwards.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def follow(EARLY: tl.constexpr):
    """Let the next kernel begin, then wait for the results of all earlier kernels."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def activated(gate, IS_GELU: tl.constexpr):
    """silu(gate), or the tanh approximation of gelu(gate)."""
    if IS_GELU:
        return gate * tl.sigmoid(1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate))
    return gate * tl.sigmoid(gate)


@triton.jit
def norm_rows(
    x, weight, out, size, x_stride, eps,
    IS_ADDED: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Apply a root mean square norm to a row of x [size]. Store the result in `out`, or add it."""
    row = tl.program_id(0).to(tl.int64)  # a long prefill has over 2^31 numbers
    columns = tl.arange(0, BLOCK)
    is_in = columns < size
    weights = tl.load(weight + columns, mask=is_in, other=0.0).to(tl.float32)
    follow(EARLY)
    values = tl.load(x + row * x_stride + columns, mask=is_in, other=0.0).to(tl.float32)
    normed = values * tl.rsqrt(tl.sum(values * values) / size + eps) * weights
    places = out + row * size + columns
    if IS_ADDED:
        normed += tl.load(places, mask=is_in, other=0.0).to(tl.float32)
    tl.store(places, normed, mask=is_in)


@triton.jit
def _scaled(x, norm, squares, columns, size, HAS_NORM: tl.constexpr):
    """A block of a row as float32, times the norm's weights, and the sums of squares so far."""
    is_in = columns < size
    values = tl.load(x + columns, mask=is_in, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares += values * values
        values *= tl.load(norm + columns, mask=is_in, other=0.0).to(tl.float32)
    return values, squares


@triton.jit
def _sums_ahead(
    x, norm, places, others, sums, other_sums, is_row, size,
    HAS_NORM: tl.constexpr, IS_GATED: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Add the products of all blocks to `sums`. Each block is requested before it is needed.

    `places` and `others` [ROWS, BLOCK] point to the first blocks of the two weights.
    """
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    mask = is_row & (columns < size)[None, :]
    coming = tl.load(places, mask=mask, other=0.0, eviction_policy="evict_first")
    if IS_GATED:
        other_coming = tl.load(others, mask=mask, other=0.0, eviction_policy="evict_first")
    follow(EARLY)
    # Unrolled, because an iteration waits at its end for the loads that it passes to the next one.
    for begin in tl.range(0, size, BLOCK, loop_unroll_factor=2):
        block = coming  # of the weight, [ROWS, BLOCK]
        ahead = begin + BLOCK
        mask = is_row & (ahead + columns < size)[None, :]
        coming = tl.load(places + ahead, mask=mask, other=0.0, eviction_policy="evict_first")
        if IS_GATED:
            other_block = other_coming
            other_coming = tl.load(
                others + ahead, mask=mask, other=0.0, eviction_policy="evict_first"
            )
        values, squares = _scaled(x, norm, squares, begin + columns, size, HAS_NORM)
        sums += block.to(tl.float32) * values[None, :]
        if IS_GATED:
            other_sums += other_block.to(tl.float32) * values[None, :]
    return sums, other_sums, squares


@triton.jit
def project_row(
    x, weight, bias, norm, out, num_out, size, eps,
    HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr, IS_ADDED: tl.constexpr,
    IS_GATED: tl.constexpr, IS_GELU: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply ROWS rows of `weight` [num_out, size] with a row x [size].

    The products are stored in `out` [num_out], or added to it. A norm's weights are applied to x,
    and its scale to the sums. If gated, `weight` is [2 * num_out, size], and the result is
    act(first half) * second half. The first block of weights is requested before x is ready.
    """
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = (rows < num_out)[:, None]
    places = weight + rows[:, None] * size + tl.arange(0, BLOCK)[None, :]
    others = places + num_out.to(tl.int64) * size
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    other_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    sums, other_sums, squares = _sums_ahead(
        x, norm, places, others, sums, other_sums, is_row, size, HAS_NORM, IS_GATED, BLOCK, EARLY
    )
    scale = 1.0
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(squares) / size + eps)
    results = tl.sum(sums, 1) * scale
    is_kept = rows < num_out
    if HAS_BIAS:
        results += tl.load(bias + rows, mask=is_kept, other=0.0).to(tl.float32)
    if IS_GATED:
        other = tl.sum(other_sums, 1) * scale
        if HAS_BIAS:
            other += tl.load(bias + num_out + rows, mask=is_kept, other=0.0).to(tl.float32)
        results = activated(results, IS_GELU) * other
    if IS_ADDED:
        results += tl.load(out + rows, mask=is_kept, other=0.0).to(tl.float32)
    tl.store(out + rows, results, mask=is_kept)


@triton.jit
def gate_rows(
    both, out, inner, IS_GELU: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Store act(gate) * up for BLOCK columns of a row [gate ; up]. Each half has size `inner`."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = columns < inner
    places = both + row * 2 * inner + columns
    follow(EARLY)
    gate = tl.load(places, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(places + inner, mask=is_in, other=0.0).to(tl.float32)
    tl.store(out + row * inner + columns, activated(gate, IS_GELU) * up, mask=is_in)


@triton.jit
def rotate_and_write_kv(
    qkv, rows, kept, cos_sin, norm, qkv_stride, rows_stride, cos_sin_stride, num_queries, num_kv,
    eps, HAS_NORM: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Process a head of a row [queries ; keys ; values]. `kept` [n] are the cache rows of the rows.

    Queries are rotated in place. Keys are rotated and written to the cache, and values are written
    as they are. If `norm` [query and key heads, DIM] is given, queries and keys are normalised
    first.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    is_in = columns < DIM
    source = qkv + row * qkv_stride + head * DIM
    follow(EARLY)
    values = tl.load(source + columns, mask=is_in, other=0.0)
    to = rows + tl.load(kept + row) * rows_stride + (head - num_queries) * DIM
    if head >= num_queries + num_kv:  # a value
        tl.store(to + columns, values, mask=is_in)
    else:  # rotated = x * cos + (x with swapped halves) * sin; sin is negative in the first half
        across_columns = (columns + DIM // 2) % DIM
        wide = values.to(tl.float32)
        across = tl.load(source + across_columns, mask=is_in, other=0.0).to(tl.float32)
        if HAS_NORM:
            scale = tl.rsqrt(tl.sum(wide * wide) / DIM + eps)
            weights = norm + head * DIM
            wide *= scale * tl.load(weights + columns, mask=is_in, other=0.0)
            across *= scale * tl.load(weights + across_columns, mask=is_in, other=0.0)
        angles = cos_sin + row * cos_sin_stride + columns
        cos = tl.load(angles, mask=is_in, other=0.0).to(tl.float32)
        sin = tl.load(angles + DIM, mask=is_in, other=0.0).to(tl.float32)
        rotated = wide * cos + across * sin
        tl.debug_barrier()  # a query overwrites the half that other threads read
        if head < num_queries:
            tl.store(source + columns, rotated, mask=is_in)
        else:
            tl.store(to + columns, rotated, mask=is_in)
