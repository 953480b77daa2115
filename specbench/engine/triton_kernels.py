"""Triton kernels of decoder layers: few rows, every weight and every cached key read once.

Knows pointers, strides and block sizes. What is called with which, `engine.triton_ops` knows. Sums
are in float32, and a result is rounded once.

With EARLY a kernel begins while the one before it ends (programmatic dependent launch): it reads
nothing but weights, and writes nothing, before `follow`. That one has followed its own predecessor
by then, so that all earlier results are there.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def follow(EARLY: tl.constexpr):
    """Let the next kernel begin, and wait for what the kernels before this one have written."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def norm_rows(
    x, weight, out, size, x_stride, eps, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """The root mean square norm of a row [size]."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    is_in = columns < size
    weights = tl.load(weight + columns, mask=is_in, other=0.0).to(tl.float32)
    follow(EARLY)
    values = tl.load(x + row * x_stride + columns, mask=is_in, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / size + eps)
    tl.store(out + row * size + columns, values * scale * weights, mask=is_in)


@triton.jit
def _scaled(x, norm, squares, columns, size, HAS_NORM: tl.constexpr):
    """Values of a row as float32, times their norm's weights, and the squares seen so far."""
    is_in = columns < size
    values = tl.load(x + columns, mask=is_in, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares += values * values
        values *= tl.load(norm + columns, mask=is_in, other=0.0).to(tl.float32)
    return values, squares


@triton.jit
def project_row(
    x, weight, bias, norm, out, num_out, size, eps,
    HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr, IS_ADDED: tl.constexpr,
    IS_GATED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A row x [size] through ROWS rows of weight [num_out, size], into `out` or added to it.

    Its norm's weights are applied on the way, the norm's scale to the sums. Gated, weight is
    [2 * num_out, size], and the result silu(first half) * second half. The weights come through
    STAGES buffers in shared memory; without stages the next ones are asked for before the last are
    used, and the first before `x` is there.
    """
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = (rows < num_out)[:, None]
    columns = tl.arange(0, BLOCK)
    places = weight + rows[:, None] * size + columns[None, :]
    others = places + num_out.to(tl.int64) * size
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    other_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    if STAGES:
        follow(EARLY)
        for begin in tl.range(0, size, BLOCK, num_stages=STAGES):
            mask = is_row & (begin + columns < size)[None, :]
            part = tl.load(places + begin, mask=mask, other=0.0)
            values, squares = _scaled(x, norm, squares, begin + columns, size, HAS_NORM)
            sums += part.to(tl.float32) * values[None, :]
            if IS_GATED:
                other_part = tl.load(others + begin, mask=mask, other=0.0)
                other_sums += other_part.to(tl.float32) * values[None, :]
    else:
        mask = is_row & (columns < size)[None, :]
        coming = tl.load(places, mask=mask, other=0.0, eviction_policy="evict_first")
        if IS_GATED:
            other_coming = tl.load(others, mask=mask, other=0.0, eviction_policy="evict_first")
        follow(EARLY)
        # Unrolled, since what a turn hands on to the next is waited for at its end.
        for begin in tl.range(0, size, BLOCK, loop_unroll_factor=2):
            part = coming
            ahead = begin + BLOCK
            mask = is_row & (ahead + columns < size)[None, :]
            coming = tl.load(places + ahead, mask=mask, other=0.0, eviction_policy="evict_first")
            if IS_GATED:
                other_part = other_coming
                other_coming = tl.load(
                    others + ahead, mask=mask, other=0.0, eviction_policy="evict_first"
                )
            values, squares = _scaled(x, norm, squares, begin + columns, size, HAS_NORM)
            sums += part.to(tl.float32) * values[None, :]
            if IS_GATED:
                other_sums += other_part.to(tl.float32) * values[None, :]
    scale = 1.0
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(squares) / size + eps)
    found = tl.sum(sums, 1) * scale
    is_kept = rows < num_out
    if HAS_BIAS:
        found += tl.load(bias + rows, mask=is_kept, other=0.0).to(tl.float32)
    if IS_GATED:
        other = tl.sum(other_sums, 1) * scale
        if HAS_BIAS:
            other += tl.load(bias + num_out + rows, mask=is_kept, other=0.0).to(tl.float32)
        found = found * tl.sigmoid(found) * other
    if IS_ADDED:
        found += tl.load(out + rows, mask=is_kept, other=0.0).to(tl.float32)
    tl.store(out + rows, found, mask=is_kept)


@triton.jit
def gate_rows(both, out, inner, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """silu(gate) * up of BLOCK columns of a row [gate ; up], each `inner` wide."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = columns < inner
    places = both + row * 2 * inner + columns
    follow(EARLY)
    gate = tl.load(places, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(places + inner, mask=is_in, other=0.0).to(tl.float32)
    tl.store(out + row * inner + columns, gate * tl.sigmoid(gate) * up, mask=is_in)


@triton.jit
def turn_and_keep(
    qkv, rows, kept, turn, qkv_stride, rows_stride, turn_stride, num_queries, num_kv,
    DIM: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A head of a row [queries ; keys ; values], to be kept in cache row `kept`.

    Queries are turned in place by their rotary embedding, keys on their way to the cache.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    is_in = columns < DIM
    source = qkv + row * qkv_stride + head * DIM
    follow(EARLY)
    values = tl.load(source + columns, mask=is_in, other=0.0)
    to = rows + tl.load(kept + row) * rows_stride + (head - num_queries) * DIM
    if head >= num_queries + num_kv:
        tl.store(to + columns, values, mask=is_in)
    else:
        across = tl.load(source + (columns + DIM // 2) % DIM, mask=is_in, other=0.0)
        angles = turn + row * turn_stride + columns
        by = tl.load(angles, mask=is_in, other=0.0).to(tl.float32)
        by_across = tl.load(angles + DIM, mask=is_in, other=0.0).to(tl.float32)
        turned = values.to(tl.float32) * by + across.to(tl.float32) * by_across
        tl.debug_barrier()  # a query is written where the other half of it was read
        if head < num_queries:
            tl.store(source + columns, turned, mask=is_in)
        else:
            tl.store(to + columns, turned, mask=is_in)


@triton.jit
def attend_split(
    queries, rows, bias, first, parts, tops, totals,
    n, num_more, group, queries_stride, rows_stride, kv_width, split_size, scale,
    DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """ROWS of the queries that share a key head, over `split_size` rows of the cache.

    A query sees the `first` rows, and of the `num_more` behind them what `bias` [n, num_more]
    lets it. Leaves for each query head of each row the highest score, and the sums of the weights
    and of the weighted values, relative to that score.
    """
    head, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    places = block * ROWS + tl.arange(0, ROWS)
    is_row = places < group * n
    row, query_head = places % n, head * group + places // n
    dims = tl.arange(0, DIM)
    follow(EARLY)
    source = queries + row.to(tl.int64)[:, None] * queries_stride + query_head[:, None] * DIM
    asked = tl.load(source + dims[None, :], mask=is_row[:, None], other=0.0)
    start = tl.load(first).to(tl.int32)
    begin = split * split_size
    end = tl.minimum(begin + split_size, start + num_more)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, DIM], tl.float32)
    for at in range(begin, end, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        is_in = columns < end
        lines = rows + columns.to(tl.int64)[:, None] * rows_stride + (head * DIM + dims)[None, :]
        keys = tl.load(lines, mask=is_in[:, None], other=0.0)
        scores = tl.dot(asked, tl.trans(keys), input_precision="ieee") * scale
        behind = columns - start
        masked = bias + row[:, None] * num_more + behind[None, :]
        is_behind = is_row[:, None] & (is_in & (behind >= 0))[None, :]
        scores += tl.load(masked, mask=is_behind, other=0.0).to(tl.float32)
        scores = tl.where(is_in[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        values = tl.load(lines + kv_width, mask=is_in[:, None], other=0.0)
        product = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        found = found * shrink[:, None] + product
        total = total * shrink + tl.sum(weights, 1)
        top = new_top
    num_heads = tl.num_programs(0) * group
    to = (split * n + row).to(tl.int64) * num_heads + query_head
    tl.store(parts + to[:, None] * DIM + dims[None, :], found, mask=is_row[:, None])
    tl.store(tops + to, top, mask=is_row)
    tl.store(totals + to, total, mask=is_row)


@triton.jit
def join_splits(
    parts, tops, totals, out, num_places, num_splits,
    DIM: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The attention's output for a query head of a row, from what its splits left."""
    place = tl.program_id(0).to(tl.int64)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, DIM)
    is_in = splits < num_splits
    at = splits.to(tl.int64) * num_places + place
    follow(EARLY)
    top = tl.load(tops + at, mask=is_in, other=float("-inf"))
    weights = tl.exp(top - tl.max(top))
    total = tl.sum(weights * tl.load(totals + at, mask=is_in, other=0.0))
    found = tl.load(parts + at[:, None] * DIM + dims[None, :], mask=is_in[:, None], other=0.0)
    tl.store(out + place * DIM + dims, tl.sum(found * weights[:, None], 0) / total)
